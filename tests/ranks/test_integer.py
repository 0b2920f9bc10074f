"""Averages and factors of integers under Horovod's names: added up in int64, and cut to a whole number."""

import numpy as np
import pytest
import tensorflow as tf

import tfdist
import tfdist.keras as hvd_keras
import tfdist.tensorflow as hvd
from tfdist.errors import ConfigError

SIZES = pytest.mark.ranks(1, 2, 3, 4)
MODES = pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
DTYPES = ("uint8", "int8", "uint16", "int16", "int32", "int64")


def values_of(rank, dtype="int32"):
    return np.array([rank, 2 * rank + 1, 7, 3 * rank], dtype)


def total(world, dtype="int32"):
    return np.sum([values_of(rank, dtype) for rank in range(world)], axis=0, dtype="float64")


def mine(dtype="int32"):
    return tf.constant(values_of(tfdist.rank(), dtype))


@SIZES
@MODES
@pytest.mark.parametrize("dtype", DTYPES)
def test_average(world, wrap, dtype):
    result = wrap(lambda: hvd.allreduce(mine(dtype), name="x"))()
    assert result.dtype == dtype
    assert np.array_equal(result, np.trunc(total(world) / world).astype(dtype))


@SIZES
@MODES
def test_factors(world, wrap):
    """Each rank's part is cut before it is added up."""
    result = wrap(lambda: hvd.allreduce(mine(), op=hvd.Sum, prescale_factor=0.7, postscale_factor=-1.5, name="x"))()
    summed = np.sum([np.trunc(values_of(rank) * 0.7) for rank in range(world)], axis=0)
    assert np.array_equal(result, np.trunc(summed * -1.5))


class Unchanged(tfdist.compression.Compressor):
    def compress(self, tensor):
        return tensor, None

    def decompress(self, tensor, ctx):
        return tensor


@SIZES
def test_a_compression_of_ones_own_is_refused(world):
    """Where it would see nothing; sums without a factor go through it."""
    rows = tf.zeros([world, 2], tf.int32)
    calls = [
        lambda given: hvd.allreduce(mine(), compression=given),
        lambda given: hvd.grouped_allreduce([mine(), tf.ones([2])], compression=given),
        lambda given: hvd.reducescatter(rows, compression=given),
    ]
    for call in calls:
        with pytest.raises(ConfigError, match="of which a compression of your own would"):
            call(Unchanged())
        with pytest.raises(ConfigError, match="compression must be one of none"):
            call("halved")
        call(hvd.Compression.fp16)
    assert np.array_equal(hvd.allreduce(mine(), op=hvd.Sum, compression=Unchanged()), total(world))


@SIZES
def test_what_divides_without_rest_is_exact(world):
    """Multiplied by 1 / 49, 49 is less than 1."""
    x = tf.constant([49, 98, -49], tf.int64)
    assert np.array_equal(hvd.allreduce(x * world, op=hvd.Average), x.numpy() * world)
    assert np.array_equal(hvd.allreduce(x, op=hvd.Max, postscale_factor=1 / 7), [7, 14, -7])


@SIZES
def test_an_average_of_large_numbers_is_exact(world):
    """Their sum would not fit in uint8 or int32, nor would a float64 keep the last digits."""
    for dtype, number in (("uint8", 250), ("int8", -120), ("int32", 2**31 - 9), ("int64", 2**60 + 1)):
        x = tf.constant([number, number - world + 1 + 2 * tfdist.rank()], dtype)
        assert hvd.allreduce(x, name=dtype).numpy().tolist() == [number, number]


@SIZES
@MODES
def test_in_a_group_beside_others(world, wrap):
    tensors = [mine(), tf.cast(mine(), tf.float32), mine("int64")]
    results = wrap(lambda: hvd.grouped_allreduce(tensors, name="x"))()
    assert [result.dtype.name for result in results] == ["int32", "float32", "int64"]
    for result, expected in zip(results, [np.trunc(total(world) / world), total(world) / world] * 2, strict=False):
        np.testing.assert_allclose(result, expected, rtol=1e-6)
    sums = hvd.grouped_allreduce(tensors, op=hvd.Sum, name="y")
    for result in sums:
        assert np.array_equal(result, total(world))


def dealt(rows, world):
    """This rank's part of rows, as reducescatter deals them."""
    return np.array_split(rows, world)[tfdist.rank()]


@SIZES
@MODES
def test_reducescatter(world, wrap):
    result = wrap(lambda: hvd.reducescatter(mine(), name="x"))()
    assert result.dtype == tf.int32
    assert np.array_equal(result, dealt(np.trunc(total(world) / world), world))
    tensors = [tf.cast(mine(), tf.float32), mine("uint8"), mine()]
    results = wrap(lambda: hvd.grouped_reducescatter(tensors, op=hvd.Sum, prescale_factor=0.5, postscale_factor=2.0))()
    halves = np.sum([np.trunc(values_of(rank) * 0.5) for rank in range(world)], axis=0)
    assert [each.dtype.name for each in results] == ["float32", "uint8", "int32"]
    for each, expected in zip(results, (total(world), 2 * halves, 2 * halves), strict=True):
        assert np.array_equal(each, dealt(expected, world))
    assert np.array_equal(hvd.reducescatter(mine(), op=hvd.Sum), dealt(total(world), world))


@SIZES
def test_reducescatter_under_the_names_for_keras(world):
    np.testing.assert_allclose(hvd_keras.reducescatter(mine()), dealt(total(world) / world, world), rtol=1e-6)
    assert hvd_keras.reducescatter(mine(), op=hvd.Sum).dtype == tf.int32


@pytest.mark.ranks(2, 3)
def test_in_a_session(world):
    with tf.Graph().as_default():
        fetched = hvd.allreduce(mine(), name="x")
        with tf.compat.v1.Session() as session:
            assert np.array_equal(session.run(fetched), np.trunc(total(world) / world))


@pytest.mark.ranks(1)
def test_device_names_are_refused_here_too(world):
    with pytest.raises(tfdist.errors.ConfigError, match="device_dense"):
        hvd.allreduce(mine(), device_dense="/gpu:0")


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("make", [lambda x: x, np.int64, tf.constant], ids=["python", "numpy", "tensor"])
def test_under_the_names_for_keras_they_become_fractions(world, make):
    mean = hvd_keras.allreduce(make(tfdist.rank()), name="x")
    assert mean.dtype == tf.float32
    assert float(mean) == (world - 1) / 2
    assert int(hvd_keras.allreduce(make(2), op=hvd.Sum, name="y")) == 2 * world
    assert float(hvd_keras.allreduce(make(1), op=hvd.Max, postscale_factor=0.5, name="z")) == 0.5
