"""The random order of a source's pieces. Drawn where the dataset is made, never on workers."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf


def draw(count: int, seed: int | None) -> tuple[np.ndarray[Any, Any], tuple[int, ...] | None]:
    """A permutation of `count` pieces that all workers of a service follow, so that each piece goes to exactly one of
    them.

    Args:
        count: Number of pieces.
        seed: As for `tf.data.Dataset.shuffle`: None uses TensorFlow's global seed, if set.

    Returns:
        The permutation, and the numbers it was drawn with; None without a seed.
    """
    seeds = tf.compat.v1.random.get_seed(seed)
    if seeds == (None, None):
        return np.random.default_rng().permutation(count), None
    numbers = tuple(abs(int(part)) for part in seeds)
    return np.random.default_rng(numbers).permutation(count), numbers
