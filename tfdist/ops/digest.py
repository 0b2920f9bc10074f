"""A digest of every bit of a tensor, computed where the tensor is. Compares nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.native import library

# Of 64-bit intermediates on a GPU: 32 MiB each.
_PIECE_ELEMENTS = 1 << 22
_PLACE_FACTOR = -7046029254386353131  # odd, as the next: multiplying by it loses nothing
_FACTOR = -4417276706812531889
_WORDS = {1: tf.uint8, 2: tf.uint16}


def digest_of(value: Any) -> int:
    """Returns a digest that changes if any bit or the order of the elements does.

    It ignores the shape. Digests of a tensor on a GPU and of one in host memory cannot be compared.

    Args:
        value: `tf.Tensor` or `np.ndarray` of numbers.

    Returns:
        An int64.
    """
    if isinstance(value, tf.Tensor) and "GPU" in value.device:
        return digest_on_device(value)
    array = np.ascontiguousarray(value)  # of a tensor in memory it is a view
    return library.digest(array.ctypes.data, array.nbytes)


def digest_on_device(tensor: tf.Tensor) -> int:
    """The digest of a tensor on a GPU; no content is copied to the host."""
    flat = tf.reshape(tensor, [-1])
    count = int(flat.shape[0])
    pieces = range(0, count, _PIECE_ELEMENTS)
    sums = [_sum_of_piece(flat[begin : begin + _PIECE_ELEMENTS], begin) for begin in pieces]
    return int(tf.add_n(sums)) if sums else 0


def _sum_of_piece(flat: tf.Tensor, begin: int) -> tf.Tensor:
    """The sum, modulo 2^64, of a hash of each word and its position."""
    words = _words(flat)
    places = tf.range(tf.size(words, tf.int64)) + begin * max(1, flat.dtype.size // 4)
    scrambled = (words + places * _PLACE_FACTOR) * _FACTOR
    scrambled = tf.bitwise.bitwise_xor(scrambled, _upper_half(scrambled)) * _FACTOR
    return tf.reduce_sum(tf.bitwise.bitwise_xor(scrambled, _upper_half(scrambled)))


def _words(flat: tf.Tensor) -> tf.Tensor:
    """The bits of the elements in words of 32 bits or less, as int64."""
    if flat.dtype == tf.bool:
        return tf.cast(flat, tf.int64)
    bits = tf.bitcast(flat, _WORDS.get(flat.dtype.size, tf.int32))
    return tf.reshape(tf.cast(bits, tf.int64), [-1])


def _upper_half(numbers: tf.Tensor) -> tf.Tensor:
    half = tf.constant(32, tf.int64)
    return tf.bitwise.bitwise_and(tf.bitwise.right_shift(numbers, half), tf.constant(0xFFFFFFFF, tf.int64))
