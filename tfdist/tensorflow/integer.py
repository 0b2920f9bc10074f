"""Averages and factors of integers, which Horovod has: computed in float64, and cut to a whole number."""

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
    return op is Average or any(hasattr(factor, "dtype") or factor != 1 for factor in factors)


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
    before, after = (call.factor_of(factor) for factor in factors)
    divisor = tf.constant(1.0, tf.float64)
    if op is Average:
        op, divisor = Sum, tf.cast(size_op(call.number_of(process_set)), tf.float64)
    inputs = [_cut(tf.cast(tensor, tf.float64) * before, tensor) for tensor in map(tf.convert_to_tensor, tensors)]
    reduced = allreduce_op.grouped_allreduce(inputs, op=op, name=name, process_set=process_set)
    return [_cut(tf.cast(tensor, tf.float64) * after / divisor, tensor) for tensor in reduced]


def _cut(value: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    return tf.cast(value, like.dtype)
