"""What an executor does for `KerasModel.transform`."""

from __future__ import annotations

import hashlib
import io
import math
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
import pandas as pd

from tfdist.spark.keras import frozen

# Models of this process, by what they are made of: Spark uses its Python workers again.
_models: dict[bytes, Any] = {}
# In a `.keras` file: when it was written.
_WITH_DATE = "metadata.json"
_MOST_MODELS = 4


@dataclass(frozen=True)
class Plan:
    """Columns, shapes in which the model takes their values, rows that it takes at a time, its outputs, `floatx` of
    Keras, and what tells the model from others.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...] | None, ...]
    batch_size: int
    outputs: int
    floatx: str
    digest: bytes


def predictor(data: Any, custom_objects: Mapping[str, Any], plan: Plan) -> Callable[[Any], Any]:
    """A function for `pandas_udf`.

    Args:
        data: A broadcast variable with a `.keras` file.
        custom_objects: What that needs.
        plan: How it is called.
    """
    # Spark has a cloudpickle of its own, to which the user may have said nothing.
    packed = cloudpickle.dumps(dict(custom_objects))
    made_of = plan.digest + hashlib.sha256(packed).digest()

    def predict(batches: Iterator[tuple[pd.Series, ...]]) -> Iterator[pd.DataFrame]:
        import keras

        keras.config.set_floatx(plan.floatx)
        model = _model(data, packed, made_of)
        for columns in batches:
            # Spark gives a single column without a tuple around it.
            yield _outputs(model, (columns,) if isinstance(columns, pd.Series) else columns, plan)

    predict.__annotations__ = {"batches": Iterator[tuple[pd.Series, ...]], "return": Iterator[pd.DataFrame]}
    return predict


def digest_of(data: bytes) -> bytes:
    """That of a `.keras` file but for its date: a model that stays as it is is loaded once."""
    found = hashlib.sha256()
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        for name in sorted(set(file.namelist()) - {_WITH_DATE}):
            content = file.read(name)
            found.update(f"{name} {len(content)} ".encode() + content)
    return found.digest()


def _model(data: Any, packed: bytes, made_of: bytes) -> Any:
    if made_of not in _models:
        if len(_models) >= _MOST_MODELS:
            _models.clear()
        _models[made_of] = frozen.load(data.value, cloudpickle.loads(packed), compiled=False)
    return _models[made_of]


def _outputs(model: Any, columns: Sequence[pd.Series], plan: Plan) -> pd.DataFrame:
    if not len(columns[0]):
        return pd.DataFrame({f"o{place}": [] for place in range(plan.outputs)})
    inputs = [_stacked(*each) for each in zip(columns, plan.names, plan.shapes, strict=True)]
    found = model.predict(inputs[0] if len(inputs) == 1 else tuple(inputs), batch_size=plan.batch_size, verbose=0)
    outputs = found if isinstance(found, (list, tuple)) else [found]
    flat = [np.reshape(np.asarray(output, "float64"), (len(columns[0]), -1)) for output in outputs]
    return pd.DataFrame({f"o{place}": list(output) for place, output in enumerate(flat)})


def _stacked(column: pd.Series, name: str, shape: tuple[int, ...] | None) -> Any:
    values = column.to_numpy()
    is_text = values.dtype == object and len(values) and isinstance(values[0], (str, bytes))
    if values.dtype == object and len(values) and not is_text:
        values = _dense(values)
    if shape is not None and values.size != len(values) * math.prod(shape):
        raise ValueError(
            f"KerasModel: column {name!r} has {values.size // len(values)} values in a row, and the model takes "
            f"{math.prod(shape)} (shape {shape})"
        )
    values = values if shape is None else values.reshape(len(values), *shape)
    return _texts(values) if is_text else values


def _dense(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Arrays in arrays as one."""
    return np.array([_dense(each) if isinstance(each, np.ndarray) else each for each in values])


def _texts(values: np.ndarray[Any, Any]) -> Any:
    """Keras takes text as a tensor only."""
    import tensorflow as tf

    return tf.constant(values.tolist())
