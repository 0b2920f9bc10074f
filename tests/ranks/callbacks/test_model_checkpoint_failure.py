"""Whatever goes wrong on rank 0 while it saves is heard on every rank at once, and nobody waits."""

import keras
import numpy as np
import pytest

import tfdist
from tfdist.callbacks import BestModelCheckpoint, DataParallel, ModelCheckpoint


@keras.saving.register_keras_serializable("tests")
class NoConfiguration(keras.layers.Layer):
    """Cannot be written to a file, which Keras finds out only while it writes."""

    def call(self, x):
        return x

    def get_config(self):
        raise TypeError("this layer has no configuration")


def fit(layers, *callbacks, **kwargs):
    model = keras.Sequential([keras.Input((2,)), *layers, keras.layers.Dense(1)])
    model.compile("sgd", loss="mse")
    x = np.random.default_rng(tfdist.rank()).normal(size=(8, 2)).astype("float32")
    model.fit(x, x[:, :1], batch_size=2, verbose=0, callbacks=[DataParallel(), *callbacks], **kwargs)


def test_a_model_that_cannot_be_written(world, shared_tmp_path):
    path = shared_tmp_path / "model.keras"
    with pytest.raises(
        tfdist.errors.TfdistError, match=r"could not write .*model\.keras: TypeError: this layer has no"
    ):
        fit([NoConfiguration()], ModelCheckpoint(str(path)))
    tfdist.barrier(name="not written")
    assert list(shared_tmp_path.iterdir()) == []


def test_the_best_by_batches(world, shared_tmp_path):
    """Keras decides what is better at the end of an epoch; here batches are compared before that."""
    best = BestModelCheckpoint(str(shared_tmp_path / "best.keras"), monitor="loss", save_freq=1)
    fit([], best, epochs=2)
    tfdist.barrier(name="written")
    assert [path.name for path in shared_tmp_path.iterdir()] == ["best.keras"]
    assert len(set(tfdist.allgather_object(float(best.best), name="best"))) == 1
