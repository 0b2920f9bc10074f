"""The gradient noise scale, from each rank's gradients and their mean over the ranks.

McCandlish, Kaplan, Amodei and the OpenAI Dota team, "An Empirical Model of Large-Batch Training", 2018
(arXiv:1812.06162), appendix A.1: two unbiased estimators, from the squared norms of a gradient over a small batch and
of one over a big batch, each averaged over steps before they are divided.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist import errors

DEFAULT_DECAY = 0.99


def estimate(small: float, big: float, small_batch: float, big_batch: float) -> tuple[float, float]:
    """The squared norm of the true gradient, and the trace of the covariance of the gradients of single samples.

    |G|^2 = (B_big |G_big|^2 - B_small |G_small|^2) / (B_big - B_small) and
    tr(S) = (|G_small|^2 - |G_big|^2) / (1 / B_small - 1 / B_big), equations A.2 and A.3. The simple noise scale is
    tr(S) / |G|^2, in samples: roughly the batch size beyond which more samples per step help little.

    Args:
        small: Mean of the squared norms of gradients over `small_batch` samples.
        big: Mean of the squared norms of gradients over `big_batch` samples.
        small_batch: Samples, more than 0.
        big_batch: Samples, more than `small_batch`.

    Returns:
        Both; they may be negative if there are too few steps.

    Example:

    ```python
    estimate(small=3.0, big=2.0, small_batch=32, big_batch=64)  # (1.0, 64.0): noise scale 64
    ```
    """
    squared_norm = (big_batch * big - small_batch * small) / (big_batch - small_batch)
    trace = (small - big) / (1.0 / small_batch - 1.0 / big_batch)
    return squared_norm, trace


class GradientNorms:
    """Squared norms of a rank's gradients and of the reduced ones, averaged over the training steps.

    Averages are exponential and bias-corrected. A step whose reduced gradient is not finite is skipped. Sparse
    gradients are ignored.

    Args:
        decay: Decay of the averages, at least 0 and less than 1; 0 keeps only the last step.

    Raises:
        ConfigError: If `decay` is anything else.
    """

    def __init__(self, decay: float = DEFAULT_DECAY) -> None:
        if not 0 <= decay < 1:
            raise errors.ConfigError(f"decay must be at least 0 and less than 1; received {decay}.")
        self._decay = decay
        # Sums of what is weighted by powers of the decay: of this rank's norms, of the reduced ones, of the weights.
        self._sums = tf.Variable([0.0, 0.0, 0.0], trainable=False, dtype=tf.float64)

    def observe(self, own: Sequence[Any], reduced: Sequence[Any], factor: float = 1.0) -> None:
        """Adds one step.

        Args:
            own: This rank's gradients: tensor, `tf.IndexedSlices` or None each.
            reduced: The same after the reduction.
            factor: The factor by which the mean over the ranks was multiplied.
        """
        big = _squared_norm(reduced) / factor**2
        step = tf.stack([_squared_norm(own), big, tf.ones((), tf.float64)])
        new = self._decay * self._sums + (1.0 - self._decay) * step
        self._sums.assign(tf.where(tf.math.is_finite(big), new, self._sums))

    def read(self) -> tuple[float, float] | None:
        """The averages of this rank's squared norm, and of that of the reduced gradient; None before the first step."""
        own, reduced, weight = (float(value) for value in self._sums.numpy())
        return (own / weight, reduced / weight) if weight else None


def _squared_norm(gradients: Sequence[Any]) -> tf.Tensor:
    dense = [gradient for gradient in gradients if gradient is not None and not isinstance(gradient, tf.IndexedSlices)]
    squares = [tf.cast(tf.reduce_sum(tf.square(tf.cast(gradient, tf.float32))), tf.float64) for gradient in dense]
    return tf.add_n(squares) if squares else tf.zeros((), tf.float64)
