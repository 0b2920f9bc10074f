"""The number for the content of a tensor: every bit, the order, each dtype; in memory and by TensorFlow's ops."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist.ops import digest
from tfdist.ops.digest import digest_of, digest_on_device

WAYS = (digest_of, digest_on_device)


def floats(count=1000):
    return np.random.default_rng(3).normal(size=count).astype("float32")


def changes():
    """Floats that differ from `floats()` and from each other in what a digest may overlook."""
    for place, bits in ((0, 1), (999, 1), (500, 1 << 31), (501, 1 << 31), (16, 1 << 23)):
        changed = floats()
        changed.view(np.uint32)[place] ^= bits
        yield changed
    for pair in ([500, 501], [0, 16], [0, 999]):
        signs, order = floats(), floats()
        signs[pair] *= -1
        order[pair] = order[pair[::-1]]
        yield from (signs, order)
    for bits in (0x7FC00000, 0x7FC00001, 0xFFC00000, 0x80000000, 0):
        changed = floats()
        changed.view(np.uint32)[7] = bits
        yield changed
    yield floats()[::-1]


@pytest.mark.parametrize("way", WAYS)
def test_every_change_is_seen(way):
    contents = [floats(), *changes()]
    numbers = [way(tf.constant(content)) for content in contents]
    assert len(set(numbers)) == len(contents)
    assert way(tf.constant(floats())) == numbers[0]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "int64", "float16", "bfloat16", "float64", "complex64"])
def test_dtypes(way, dtype):
    zeros = tf.zeros([3, 5], dtype)
    ones = [tf.tensor_scatter_nd_update(zeros, [[i, j]], tf.ones([1], dtype)) for i in range(3) for j in range(5)]
    assert len({way(tensor) for tensor in [zeros, *ones]}) == 16


@pytest.mark.parametrize("dtype", ["float64", "int64"])
def test_two_signs_of_eight_bytes_on_a_device(dtype):
    plain, changed = np.ones(9, dtype), np.ones(9, dtype)
    changed.view(np.uint64)[[2, 5]] ^= np.uint64(1 << 63)
    assert digest_on_device(tf.constant(plain)) != digest_on_device(tf.constant(changed))


def test_pieces_on_a_device_have_places(monkeypatch):
    whole = [digest_on_device(tf.constant(content)) for content in (floats(), floats().astype("float64"))]
    monkeypatch.setattr(digest, "_PIECE_ELEMENTS", 7)
    assert [digest_on_device(tf.constant(content)) for content in (floats(), floats().astype("float64"))] == whole
    assert digest_on_device(tf.zeros([0])) == 0


def test_arrays_and_what_has_no_elements():
    assert digest_of(floats()) == digest_of(tf.constant(floats()))
    assert digest_of(floats()[::2]) == digest_of(floats()[::2].copy())
    assert digest_of(tf.zeros([0])) == digest_of(np.zeros(0))
    assert -(2**63) <= digest_of(floats()) < 2**63
