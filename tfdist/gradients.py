"""Reduces the gradients of one training step over all ranks, in one fused collective. Knows no optimizer."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist import errors, runtime
from tfdist.compression import Compression
from tfdist.ops import allreduce
from tfdist.reduction import Average, ReduceOp, Sum

_weight: contextvars.ContextVar[tf.Tensor | None] = contextvars.ContextVar("weight", default=None)


@contextlib.contextmanager
def weighted_by(weight: tf.Tensor | None) -> Iterator[None]:
    """Averages of gradients inside weight each rank by this, such as the number of its samples.

    Args:
        weight: int64 scalar, 0 to 2^32 - 1; None lets all ranks count alike.
    """
    token = _weight.set(weight)
    try:
        yield
    finally:
        _weight.reset(token)


@dataclass(frozen=True)
class GradientReduction:
    """How gradients are reduced.

    Attributes:
        op: `Average` or `Sum`.
        compression: Wire type of float32 and float64 gradients.
        sparse_as_dense: Whether a `tf.IndexedSlices` is made dense and reduced; otherwise its rows are gathered.
        predivide_factor: With Average, gradients are divided by this before the sum and by `size() / factor` after.
    """

    op: ReduceOp = Average
    compression: Compression = Compression.none
    sparse_as_dense: bool = False
    predivide_factor: float = 1.0

    def __post_init__(self) -> None:
        if self.op not in (Average, Sum):
            raise errors.ConfigError(f"gradients are reduced by op=Average or op=Sum; received {self.op!r}.")
        if self.predivide_factor <= 0:
            raise errors.ConfigError(
                f"gradient_predivide_factor must be more than 0; received {self.predivide_factor}."
            )
        if self.predivide_factor != 1.0 and self.op is not Average:
            raise errors.ConfigError("gradient_predivide_factor is for op=Average; received op=Sum.")

    def reduce(self, gradients: Sequence[Any], names: Sequence[str], label: str) -> list[Any]:
        """Reduces one gradient a variable.

        Args:
            gradients: Tensor, `tf.IndexedSlices` or None each; order and kinds are the same on every rank.
            names: One name a gradient, for errors.
            label: What errors call the collective.

        Returns:
            List in the order of `gradients`; None stays None.
        """
        dense = {
            index: tf.convert_to_tensor(gradient)  # an IndexedSlices becomes dense
            for index, gradient in enumerate(gradients)
            if gradient is not None and not self._gathered(gradient)
        }
        result: list[Any] = list(gradients)
        if dense:
            reduced = self._allreduce(list(dense.values()), [names[i] for i in dense], label)
            for index, gradient in zip(dense, reduced, strict=True):
                result[index] = gradient
        for index, gradient in enumerate(gradients):
            if self._gathered(gradient):
                result[index] = self._gather(gradient, f"{label}/{names[index]}")
        return result

    def _gather(self, slices: tf.IndexedSlices, label: str) -> tf.IndexedSlices:
        weight = _weight.get()
        if weight is None or self.op is not Average:
            return allreduce.allreduce(slices, op=self.op, name=label)
        own = tf.cast(weight, tf.float64)
        share = own / allreduce.allreduce(own, op=Sum, name=f"{label}/weights")
        scaled = tf.IndexedSlices(
            slices.values * tf.cast(share, slices.values.dtype), slices.indices, slices.dense_shape
        )
        return allreduce.allreduce(scaled, op=Sum, name=label)

    def _gathered(self, gradient: Any) -> bool:
        return isinstance(gradient, tf.IndexedSlices) and not self.sparse_as_dense

    def _allreduce(self, gradients: list[tf.Tensor], names: list[str], label: str) -> list[tf.Tensor]:
        predivide = self.predivide_factor
        before, after, op = 1.0, 1.0, self.op
        weight = _weight.get() if self.op is Average else None
        if predivide != 1.0 and weight is None:
            before, after, op = 1.0 / predivide, predivide / runtime.size(), Sum
        return allreduce.grouped_allreduce(
            gradients,
            op=op,
            compression=self.compression,
            prescale_factor=before,
            postscale_factor=after,
            name=label,
            tensor_names=names,
            weight=weight,
        )
