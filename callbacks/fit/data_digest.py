"""A number that differs between batches, by which ranks notice that they are fed the same. Not a callback."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

_ELEMENTS = 1024
_BUCKETS = 1 << 20  # hashes of strings that float32 holds exactly

_SAME = (
    "all ranks are trained on the same data, so {size} ranks do the work of one. Give each rank its part, with this "
    "line before fit:\n    dataset = tfdist.shard(dataset)\nor, for arrays:\n    x, y = tfdist.shard((x, y))"
)
_SAME_AFTER_SHARD = (
    "all ranks are trained on the same data, although tfdist.shard has dealt it out: the data itself is constant, or "
    "repeats after so many batches as there are ranks ({size})."
)


def digest(data: Any, compiled: bool) -> tf.Tensor:
    """A float32 scalar from about 1,024 elements of each tensor, also of text, ragged and sparse ones.

    Args:
        data: A batch, as a step gets it.
        compiled: Whether XLA compiles the step: it has no strings, so they are not looked at.

    Returns:
        NaN, which equals nothing, where there was nothing to look at.
    """
    parts = [
        _numbers(leaf)
        for leaf in tf.nest.flatten(data, expand_composites=True)
        if isinstance(leaf, tf.Tensor) and not (compiled and leaf.dtype == tf.string)
        if leaf.dtype not in (tf.resource, tf.variant)
    ]
    if not parts:
        return tf.constant(float("nan"))
    return tf.add_n([tf.reduce_sum(part * tf.range(1, tf.size(part) + 1, dtype=tf.float32)) for part in parts])


def complaint(size: int, sharded: bool) -> str:
    """What to say where the ranks were fed the same.

    Args:
        size: The number of ranks.
        sharded: Whether `tfdist.shard` has dealt out what they were fed.
    """
    return (_SAME_AFTER_SHARD if sharded else _SAME).format(size=size)


def _numbers(leaf: tf.Tensor) -> tf.Tensor:
    flat = tf.reshape(leaf, [-1])
    # Taken from the whole batch: the first pixels or tokens may be the same padding everywhere.
    part = flat[:: tf.maximum(1, tf.size(flat) // _ELEMENTS)]
    if part.dtype == tf.string:
        part = tf.strings.to_hash_bucket_fast(part, _BUCKETS)
    return tf.cast(tf.math.real(part) if part.dtype.is_complex else part, tf.float32)
