"""Averages and factors of integers, which Horovod has: added up in int64, and cut to a whole number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.ops import allreduce as allreduce_op
from tfdist.ops.graph import call
from tfdist.ops.reduction import Average, ReduceOp, Sum
from tfdist.ops.topology import size_op
from tfdist.world.process_sets import ProcessSet


def are_affected(tensor: Any, op: ReduceOp, factors: Sequence[Any]) -> bool:
    """Whether a tensor is one of integers that an average or a factor may turn into fractions."""
    if isinstance(tensor, tf.IndexedSlices) or not tf.convert_to_tensor(tensor).dtype.is_integer:
        return False
    return op is Average or any(map(_matters, factors))


def reduce(
    tensors: Sequence[Any], op: ReduceOp, factors: tuple[Any, Any], name: str, process_set: ProcessSet
) -> list[tf.Tensor]:
    """Reduces such tensors in one collective.

    Args:
        tensors: Of integers.
        op: How to reduce. The average is the sum divided by the number of ranks.
        factors: Before the reduction and behind it.
        name: Name of the collective in errors.
        process_set: The ranks that take part.
    """
    inputs = [tf.cast(tensor, tf.int64) for tensor in tensors]
    if _matters(factors[0]):
        inputs = [_scaled(tensor, factors[0]) for tensor in inputs]
    average = op is Average
    reduced = allreduce_op.grouped_allreduce(inputs, op=Sum if average else op, name=name, process_set=process_set)
    if _matters(factors[1]):
        reduced = [_scaled(tensor, factors[1]) for tensor in reduced]
    if average:
        ranks = tf.cast(size_op(call.number_of(process_set)), tf.int64)
        reduced = [tf.truncatediv(tensor, ranks) for tensor in reduced]
    dtypes = [tf.convert_to_tensor(tensor).dtype for tensor in tensors]
    return [tf.cast(result, dtype) for result, dtype in zip(reduced, dtypes, strict=True)]


def _matters(factor: Any) -> bool:
    return bool(hasattr(factor, "dtype") or factor != 1)


def _scaled(tensor: tf.Tensor, factor: Any) -> tf.Tensor:
    return tf.cast(tf.cast(tensor, tf.float64) * call.factor_of(factor), tf.int64)
