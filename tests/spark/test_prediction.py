"""What an executor does for `KerasModel.transform`: values as a model takes them."""

import io
import json
import zipfile
from dataclasses import replace
from types import SimpleNamespace

import keras
import numpy as np
import pandas as pd
import pytest

from tfdist.spark.keras import frozen, prediction


def _of_spark(array):
    """As Spark gives nested arrays to pandas."""
    if array.ndim == 1:
        return array
    found = np.empty(len(array), object)
    found[:] = [_of_spark(each) for each in array]
    return found


def _dated(file, date):
    """A `.keras` file as of another day."""
    written = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(file)) as old, zipfile.ZipFile(written, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "metadata.json":
                content = json.dumps(json.loads(content) | {"date_saved": date})
            new.writestr(name, content)
    return written.getvalue()


def test_a_model_is_loaded_once(monkeypatch):
    """Although its file has the date, and until something of it changes."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
    plan = prediction.Plan(("x",), ((1,),), 32, 1, "float32", b"")
    loaded = []
    load = frozen.load
    monkeypatch.setattr(frozen, "load", lambda *args, **options: [loaded.append(1), load(*args, **options)][1])

    def transform(date):
        file = _dated(frozen.dump(model), date)
        own = replace(plan, digest=prediction.digest_of(file))
        (found,) = prediction.predictor(SimpleNamespace(value=file), {}, own)(iter([pd.Series([3.0])]))
        return found.o0[0].tolist(), len(loaded)

    assert transform("today") == transform("tomorrow") == ([3.0], 1)
    model.set_weights([each + 1 for each in model.get_weights()])
    assert transform("tomorrow") == ([7.0], 2)


def _of_class(factor):
    class Scale(keras.layers.Layer):
        def call(self, value):
            return factor * value

    return Scale


def test_a_class_that_is_written_anew():
    """The file of its model is the same: it has names and weights only."""
    scale = _of_class(2.0)
    model = keras.Sequential([keras.Input((1,)), scale()])
    file = frozen.dump(model)
    plan = prediction.Plan(("x",), ((1,),), 32, 1, "float32", prediction.digest_of(file))

    def transform(kind):
        (found,) = prediction.predictor(SimpleNamespace(value=file), {"Scale": kind}, plan)(iter([pd.Series([3.0])]))
        return found.o0[0].tolist()

    assert transform(scale) == [6.0]
    assert transform(_of_class(5.0)) == [15.0]


@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (2, 3, 4), (2, 1, 3, 2)], ids=str)
def test_nested_arrays(shape):
    values = np.random.default_rng(1).normal(size=(5, *shape))
    column = pd.Series(list(_of_spark(values)))
    found = prediction._stacked(column, "x", shape or None)
    assert found.dtype == "float64"
    np.testing.assert_array_equal(found, values)
