"""`KerasModel`: a trained model as a stage of a pipeline, which adds predictions to a DataFrame."""

from __future__ import annotations

import math
from typing import Any

from pyspark.ml import Model
from pyspark.ml.util import MLReadable, MLWritable
from pyspark.sql import DataFrame, functions

from tfdist.errors import ConfigError
from tfdist.spark.keras import columns, frozen
from tfdist.spark.keras.params import declared, values_of
from tfdist.spark.keras.persistence import Reader, Writer

_DEFAULTS: dict[str, Any] = {
    "model": None,
    "feature_columns": None,
    "label_columns": None,
    "output_cols": None,
    "custom_objects": {},
    "history": None,
    "run_id": None,
    "batch_size": 32,
}
_NAME = "KerasModel"


@declared(_DEFAULTS)
class KerasModel(Model, MLReadable, MLWritable):
    """A trained model of Keras, as a stage of a pipeline of Spark ML. `KerasEstimator.fit` returns one.

    `transform(df)` adds a column for each output of the model: a double if the model says that the output has one value
    in a row, else a vector, as for a model of the user's own class. They are called after the labels, as in
    "digit__output", unless `setOutputCols` says otherwise. A null in a feature column is an error. `save(path)` and
    `KerasModel.load(path)` keep it where Spark writes; loading runs code that its author may have put there, as pickle
    does: load only what you trust.

    Each parameter has a getter and a setter, as in `getHistory()` and `setBatchSize(256)`.

    Args:
        model: A model of Keras.
        feature_columns: Names of the columns that it takes, one for each input.
        label_columns: Names of the columns that it was trained to predict, one for each output.
        output_cols: Names of the columns to add, one for each output; default: those of the labels with "__output".
        custom_objects: Classes and functions that the model needs, by name.
        history: What `fit` has recorded: lists of a number for each epoch, by name.
        run_id: The run in the store.
        batch_size: Rows that the model takes at a time.

    Example:

    ```python
    predicted = estimator.fit(train).setOutputCols(["probabilities"]).transform(test)
    ```
    """

    def __init__(self, **parameters: Any) -> None:
        super().__init__()
        self._setDefault(**_DEFAULTS)
        unknown = sorted(set(parameters) - set(_DEFAULTS))
        if unknown:
            raise TypeError(f"{_NAME} has no parameters {unknown}; it has {sorted(_DEFAULTS)}")
        self._set(**parameters)

    def keras(self) -> Any:
        """The model of Keras."""
        return self.getOrDefault("model")

    def _transform(self, dataset: DataFrame) -> DataFrame:
        import keras
        from pyspark.sql.functions import pandas_udf

        from tfdist.spark.keras import prediction

        values = self.values()
        model, features = values["model"], values["feature_columns"]
        outputs = _output_names(values)
        known = {name.lower() for name in dataset.columns}  # Spark takes capitals for small letters
        there = [name for name in outputs if name.lower() in known]
        if there:
            raise ConfigError(
                f"{_NAME}: the DataFrame has a column {there[0]!r} already; choose others by setOutputCols."
            )
        taken = [_whole(dataset, name) for name in features]
        shapes = tuple(map(columns.known, input_shapes(model, len(features))))
        context = dataset.sparkSession.sparkContext
        file, floatx = frozen.dump(model), keras.config.floatx()
        digest = prediction.digest_of(file)
        plan = prediction.Plan(tuple(features), shapes, values["batch_size"], len(outputs), floatx, digest)
        function = prediction.predictor(context.broadcast(file), values["custom_objects"], plan)
        kind = ", ".join(f"o{place} array<double>" for place in range(len(outputs)))
        own = f"tfdist_{self.uid}"
        found = dataset.withColumn(own, pandas_udf(function, kind)(*taken))
        for place, (name, single) in enumerate(zip(outputs, _are_single(model, len(outputs)), strict=True)):
            found = found.withColumn(name, _value(functions.col(own)[f"o{place}"], single))
        return found.drop(own)

    def values(self) -> dict[str, Any]:
        """All parameters by name; one that is set to None has its default."""
        return values_of(self, _DEFAULTS)

    def write(self) -> Writer:
        """A writer of Spark ML, as for `save`."""
        return Writer(self)

    @classmethod
    def read(cls) -> Reader:
        """A reader of Spark ML, as for `load`."""
        return Reader(cls)

    def _state(self) -> dict[str, Any]:
        values = self.values()
        return values | {"model": frozen.Recipe.of(values["model"], values["custom_objects"])}

    @classmethod
    def _restored(cls, values: dict[str, Any]) -> KerasModel:
        return cls(**(values | {"model": values["model"].build()}))


def input_shapes(model: Any, count: int) -> list[tuple[int | None, ...] | None]:
    """Shapes that a model takes, without the batch; None where it does not say. Raises ConfigError if not `count`."""
    return _shapes(model, "inputs", count, "feature_cols")


def output_shapes(model: Any, count: int) -> list[tuple[int | None, ...] | None]:
    """Shapes that a model returns, without the batch; None where it does not say. Raises ConfigError if not `count`."""
    return _shapes(model, "outputs", count, "label_cols")


def _shapes(model: Any, which: str, count: int, named: str) -> list[tuple[int | None, ...] | None]:
    named_by = getattr(model, f"_{which}_struct", None)
    if isinstance(named_by, dict):
        raise ConfigError(
            f"the {which} of the model are a dict with {sorted(named_by)}, which has no order; received {count} "
            f"{named}. Build the model with a list of them."
        )
    tensors = getattr(model, which, None)
    if not tensors:  # a model of a class of its own, or one that is not built
        return [None] * count
    if len(tensors) != count:
        raise ConfigError(
            f"the model has {len(tensors)} {which}, and each is a column; received {count} {named}. Put columns "
            "together with pyspark.ml.feature.VectorAssembler, or give the model as many."
        )
    return [tuple(tensor.shape[1:]) for tensor in tensors]


def _output_names(values: dict[str, Any]) -> list[str]:
    labels = values["label_columns"]
    names = values["output_cols"] or [f"{label}__output" for label in labels]
    are_names = isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names)
    if not are_names or len(names) != len(labels) or len({name.lower() for name in names}) < len(names):
        raise ConfigError(
            f"{_NAME}: output_cols must be a list of {len(labels)} different names, one for each label; received "
            f"{names!r}."
        )
    return list(names)


def _are_single(model: Any, count: int) -> list[bool]:
    """Whether an output has one value in a row."""
    return [shape is not None and all(size == 1 for size in shape) for shape in output_shapes(model, count)]


def _whole(frame: DataFrame, name: str) -> Any:
    """A feature column in which a null is an error, and no NaN of pandas."""
    refusal = f"{_NAME}: a null in column {name!r}, which the model cannot take"
    column = columns.expression(frame, f"{_NAME}: feature_columns", name)
    return functions.when(columns.has_null(frame, name), functions.raise_error(functions.lit(refusal))).otherwise(
        column
    )


def _value(column: Any, single: bool) -> Any:
    from pyspark.ml.functions import array_to_vector

    # What comes from pandas has a null where the model predicted no number.
    whole = functions.transform(column, lambda each: functions.coalesce(each, functions.lit(math.nan)))
    return whole[0] if single else array_to_vector(whole)
