"""The formula of Adasum on tensors of one process, for the gradient of an all-reduce. The engine has its own."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf


def fold_by_adasum(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Combines the tensors of the ranks as a binary tree of neighbours.

    Maleki et al., "Scaling Distributed Training with Adaptive Summation" (2020), eq. 4:
    `(1 - a.b / (2 |a|^2)) a + (1 - a.b / (2 |b|^2)) b`. If a level of the tree has an odd number of tensors, the last
    one moves up unchanged.

    Args:
        tensors: One per rank, all of the same floating dtype and shape.
    """
    level = list(tensors)
    while len(level) > 1:
        pairs = zip(level[::2], level[1::2], strict=False)
        level = [_combine(a, b) for a, b in pairs] + level[len(level) // 2 * 2 :]
    return level[0]


def _combine(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    product = tf.reduce_sum(a * b)
    of_a = 1 - tf.math.divide_no_nan(product, 2 * tf.reduce_sum(a * a))
    of_b = 1 - tf.math.divide_no_nan(product, 2 * tf.reduce_sum(b * b))
    return of_a * a + of_b * b
