"""A digest of a batch, by which ranks notice that they train on the same data. Not a callback."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

_ELEMENTS = 1024
_BUCKETS = 1 << 20  # hashes of strings that float32 holds exactly

_SAME = (
    "all ranks train on the same data, so {size} ranks do the work of one. Give each rank its shard with this line "
    "before fit:\n    dataset = tfdist.shard(dataset)\nor, for arrays:\n    x, y = tfdist.shard((x, y))"
)
_SAME_AFTER_SHARD = (
    "all ranks train on the same data although it was split by tfdist.shard: the data is constant, or it repeats "
    "every {size} batches, the number of ranks."
)


def digest(data: Any, compiled: bool) -> tf.Tensor:
    """A float32 scalar from about 1,024 elements of each tensor, also of text, ragged and sparse ones.

    Args:
        data: A batch, as a step gets it.
        compiled: Whether XLA compiles the step; it does not support strings, so they are ignored.

    Returns:
        NaN, which equals nothing, if there was nothing to compare.
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
    """The warning for ranks that train on the same data.

    Args:
        size: The number of ranks.
        sharded: Whether the data came from `tfdist.shard`.
    """
    return (_SAME_AFTER_SHARD if sharded else _SAME).format(size=size)


def _numbers(leaf: tf.Tensor) -> tf.Tensor:
    flat = tf.reshape(leaf, [-1])
    # Taken from the whole batch: the first pixels or tokens may be the same padding everywhere.
    part = flat[:: tf.maximum(1, tf.size(flat) // _ELEMENTS)]
    if part.dtype == tf.string:
        part = tf.strings.to_hash_bucket_fast(part, _BUCKETS)
    return tf.cast(tf.math.real(part) if part.dtype.is_complex else part, tf.float32)
