"""Leaves out the short last batch of an epoch. Whether a batch is short is seen where `.batch` makes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.errors import ConfigError
from tfdist.input import pipeline

_as_written: Callable[[Any], Any] = tf.autograph.experimental.do_not_convert
_UNCLEAR = (
    "tfdist.shard leaves out the short last batch of an epoch, and cannot tell it from the others: after a .map the "
    "batches have different numbers of rows. Write .batch({batch_size}, drop_remainder=True) in the pipeline, so that "
    "there is no short batch. Rows of the first batch, of the one before, and of this one:"
)


def of(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The dataset without batches that `.batch` made of too few samples; asserts how many are left if that is known.

    The steps after `.batch` are taken again on full batches only, because a map may return any number of rows.

    Raises:
        ConfigError: If the pipeline does not show which batches are full.
    """
    if not may_be_short(dataset):
        return dataset
    below, steps = pipeline.below_maps_of_batches(dataset)
    batching, part = pipeline.batching(below), _batch_part(below)
    if batching is None or part is None:
        return dataset
    if not batching.mapped:
        full = below.filter(_as_written(lambda *element: _rows(element, part) == batching.batch_size))
    elif batching.shuffled:
        raise ConfigError(
            "The batches of this dataset are shuffled and mapped, so the size of a full batch is unknown. Use "
            ".batch(..., drop_remainder=True), or .shuffle before .batch."
        )
    else:
        full = _as_large_as_first(below, part, batching)
    full = pipeline.again(steps, full).with_options(dataset.options())
    left = count(dataset)
    if left == tf.data.UNKNOWN_CARDINALITY:
        return full
    return full.apply(tf.data.experimental.assert_cardinality(left))


def count(dataset: tf.data.Dataset) -> int:
    """How many elements `of` leaves, or tf.data's code for unknown or infinite."""
    batching, elements = pipeline.batching(dataset), int(dataset.cardinality())
    return elements if batching is None or not may_be_short(dataset) else batching.full_batches(elements)


def may_be_short(dataset: tf.data.Dataset) -> bool:
    """Whether the elements are batches some of which may have fewer samples than the others."""
    batching = pipeline.batching(dataset)
    return batching is not None and not batching.all_full and _batch_part(dataset) is not None


def _as_large_as_first(dataset: tf.data.Dataset, part: int, batching: pipeline.Batching) -> tf.data.Dataset:
    """Keeps the batches with as many rows as the first one. Batches are made in order, so the first one is full.

    Others may have fewer rows only as the last of an epoch does: nothing follows it, or another epoch in which the last
    has as many. Anything else is an error in the pipeline, since it would drop full batches.
    """
    text = _UNCLEAR.format(batch_size=batching.batch_size)

    @_as_written
    def compare(state: tuple[tf.Tensor, tf.Tensor, tf.Tensor], element: Any) -> tuple[Any, Any]:
        first, last, before = state
        rows = _rows((element,), part)
        first, before = (tf.where(known < 0, rows, known) for known in (first, before))
        is_full = (rows == first) & ((before == first) | batching.repeated)
        is_last = (rows < first) & (before == first) & ((last < 0) | (rows == last))
        tf.debugging.Assert(is_full | is_last, [text, first, before, rows])
        return (first, tf.where(rows < first, rows, last), rows), (element, rows == first)

    unknown = tf.constant(-1, tf.int64)
    compared = dataset.scan((unknown, unknown, unknown), compare)
    return compared.filter(_as_written(lambda element, keep: keep)).map(_as_written(lambda element, keep: element))


def _batch_part(dataset: tf.data.Dataset) -> int | None:
    """Which component of an element shows its batch size; None if the sizes are fixed or there is none."""
    specs = tf.nest.flatten(dataset.element_spec)
    for index, spec in enumerate(specs):
        shape = getattr(spec, "shape", None)
        if shape is not None and shape.rank != 0:
            return index if shape.rank is None or shape[0] is None else None
    return None


def _rows(element: Any, part: int) -> tf.Tensor:
    value = tf.nest.flatten(element)[part]
    if isinstance(value, tf.SparseTensor):
        return value.dense_shape[0]
    if isinstance(value, tf.RaggedTensor):
        return tf.cast(value.nrows(), tf.int64)
    return tf.shape(value, out_type=tf.int64)[0]
