"""Averages and factors of integers, which Horovod has: added up in int64, and cut to a whole number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

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
    tensors: Sequence[Any],
    op: ReduceOp,
    factors: tuple[Any, Any],
    process_set: ProcessSet,
    collective: Callable[[list[tf.Tensor], ReduceOp], list[tf.Tensor]],
) -> list[tf.Tensor]:
    """Reduces such tensors in one collective.

    Args:
        tensors: Of integers.
        op: How to reduce. The average is the sum divided by the number of ranks.
        factors: Before the reduction and behind it.
        process_set: The ranks that take part.
        collective: Reduces tensors of int64, by a reduction that is no average.
    """
    inputs = [tf.cast(tensor, tf.int64) for tensor in tensors]
    if _matters(factors[0]):
        inputs = [_scaled(tensor, factors[0]) for tensor in inputs]
    average = op is Average
    reduced = collective(inputs, Sum if average else op)
    if _matters(factors[1]):
        reduced = [_scaled(tensor, factors[1]) for tensor in reduced]
    if average:
        ranks = tf.cast(size_op(call.number_of(process_set)), tf.int64)
        reduced = [tf.truncatediv(tensor, ranks) for tensor in reduced]
    dtypes = [tf.convert_to_tensor(tensor).dtype for tensor in tensors]
    return [tf.cast(result, dtype) for result, dtype in zip(reduced, dtypes, strict=True)]


def beside_others(
    tensors: Sequence[Any],
    op: ReduceOp,
    factors: tuple[Any, Any],
    process_set: ProcessSet,
    of_integers: Callable[[list[tf.Tensor], ReduceOp], list[tf.Tensor]],
    of_others: Callable[[list[Any]], list[Any]],
) -> list[Any]:
    """Reduces tensors of which some are such: those in a collective of their own.

    Args:
        tensors: Any tensors.
        op: As in `reduce`.
        factors: As in `reduce`.
        process_set: As in `reduce`.
        of_integers: As `collective` of `reduce`.
        of_others: Reduces the others, in their order.
    """
    result = list(tensors)
    places = [place for place, tensor in enumerate(tensors) if are_affected(tensor, op, factors)]
    others = [place for place in range(len(result)) if place not in places]
    reduced = of_others([tensors[place] for place in others])
    if places:
        reduced += reduce([tensors[place] for place in places], op, factors, process_set, of_integers)
    for place, tensor in zip([*others, *places], reduced, strict=True):
        result[place] = tensor
    return result


def _matters(factor: Any) -> bool:
    return bool(hasattr(factor, "dtype") or factor != 1)


def _scaled(tensor: tf.Tensor, factor: Any) -> tf.Tensor:
    return tf.cast(tf.cast(tensor, tf.float64) * call.factor_of(factor), tf.int64)
