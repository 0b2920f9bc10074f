"""The columns of a DataFrame that a model takes: single values, arrays and vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tfdist.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SIMPLE = ("tinyint", "smallint", "int", "bigint", "float", "double", "boolean", "string", "binary")


def expression(frame: DataFrame, what: str, name: str) -> Column:
    """A column as single values or arrays; a vector becomes an array of the numbers that Keras uses, also a sparse one.

    Args:
        frame: Of Spark.
        what: The argument that names the column, for messages.
        name: Its name.

    Raises:
        ConfigError: If there is no such column, or its type has no tensor equivalent.
    """
    import keras
    from pyspark.ml.functions import vector_to_array
    from pyspark.ml.linalg import VectorUDT

    kind = field_type(frame, what, name)
    column = frame[quoted(name)]
    if isinstance(kind, VectorUDT):
        return vector_to_array(column, "float64" if keras.config.floatx() == "float64" else "float32")
    inner = kind
    while inner.typeName() == "array":
        inner = inner.elementType
    if inner.simpleString() not in _SIMPLE or (inner is not kind and inner.simpleString() in ("string", "binary")):
        raise ConfigError(
            f"{what}: column {name!r} is of type {kind.simpleString()}, which has no tensor equivalent. Expected "
            f"numbers, booleans or text, arrays of numbers, or vectors; cast it: df.withColumn({name!r}, "
            f"df[{quoted(name)!r}].cast('double'))"
        )
    return column


def has_null(frame: DataFrame, name: str) -> Column:
    """Whether a row has a null in a column, or in an array there."""
    from pyspark.sql import functions

    def inside(column: Column, kind: Any) -> Column:
        if kind.typeName() != "array":
            return column.isNull()
        deeper = functions.exists(column, lambda each: inside(each, kind.elementType))
        return functions.coalesce(column.isNull() | deeper, functions.lit(True))

    return inside(frame[quoted(name)], frame.schema[name].dataType)


def field_type(frame: DataFrame, what: str, name: str) -> Any:
    """The type of a column. Raises ConfigError if there is none of that name."""
    found = {field.name: field.dataType for field in frame.schema.fields}
    if name not in found:
        raise ConfigError(f"{what}: the DataFrame has no column {name!r}; it has {', '.join(map(repr, found))}.")
    return found[name]


def quoted(name: str) -> str:
    """A name that Spark does not take for a path in a structure."""
    return "`" + name.replace("`", "``") + "`"


def fitted(what: str, name: str, row: Sequence[int], wanted: Sequence[int | None] | None) -> tuple[int, ...]:
    """The shape in which a model takes the values of a column.

    Args:
        what: The argument that names the column, for messages.
        name: Its name.
        row: Shape of a row of the column; () for single values.
        wanted: What the model says, without the batch; None or with a None if it leaves that open.

    Returns:
        `wanted` if it has as many values as `row`, or `row` if the model leaves it open.

    Raises:
        ConfigError: If the numbers of values differ.
    """
    shape = known(wanted)
    if shape is not None and math.prod(row) != math.prod(shape):
        raise ConfigError(
            f"{what}: column {name!r} has {math.prod(row)} values in a row, and the model takes {math.prod(shape)} "
            f"(shape {shape}). Change the model's input, or the column."
        )
    return tuple(row) if shape is None else shape


def known(shape: Sequence[int | None] | None) -> tuple[int, ...] | None:
    """A shape of which all sizes are known; None of any other."""
    sizes = [size for size in shape or () if size is not None]
    return None if shape is None or len(sizes) < len(shape) else tuple(sizes)


def same_count(row: Sequence[int], shape: Sequence[int | None]) -> bool:
    """Whether a row of a column has as many values as a shape, which is known."""
    sizes = known(shape)
    return sizes is not None and math.prod(row) == math.prod(sizes)
