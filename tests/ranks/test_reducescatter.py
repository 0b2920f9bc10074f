"""Reducescatter: this rank's rows of a reduction; where they do not divide evenly the lower ranks have one more."""

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.testing import assert_equal, expected_average, expected_sum, summable

DTYPES = ["bool", "uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
FLOATING = DTYPES[-4:]
MODES = pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
SIZES = pytest.mark.ranks(1, 2, 3, 4)

# From none through fewer than ranks to uneven and even at every world size.
ROWS = [0, 1, 3, 7, 12]


def shape_of(rows):
    return (rows, 2, 1)


def own(array, world):
    """Row counts 3, 2, 2 where seven rows are dealt to three ranks: what numpy calls array_split."""
    return np.array_split(array, world)[tfdist.rank()]


@SIZES
@MODES
@pytest.mark.parametrize("dtype", DTYPES)
def test_sum(world, dtype, wrap):
    mine = [tf.constant(summable(shape_of(rows), dtype, tfdist.rank())) for rows in ROWS]
    scattered = wrap(lambda: [tfdist.reducescatter(x, op=tfdist.Sum, name="x") for x in mine])()
    for rows, tensor in zip(ROWS, scattered, strict=True):
        assert_equal(tensor, own(expected_sum(shape_of(rows), dtype, world), world))


@SIZES
@MODES
@pytest.mark.parametrize("dtype", FLOATING)
def test_average_is_the_default(world, dtype, wrap):
    mine = [tf.constant(summable(shape_of(rows), dtype, tfdist.rank())) for rows in ROWS]
    scattered = wrap(lambda: [tfdist.reducescatter(x, name="x") for x in mine])()
    for rows, tensor in zip(ROWS, scattered, strict=True):
        assert_equal(tensor, own(expected_average(shape_of(rows), dtype, world), world))


@SIZES
@MODES
@pytest.mark.parametrize("compression", list(tfdist.Compression), ids=lambda compression: compression.value)
@pytest.mark.parametrize("dtype", FLOATING)
def test_factors_and_compression(world, dtype, compression, wrap):
    """The values fit 16 bits."""
    kind = tf.as_dtype(dtype).as_numpy_dtype
    shape = shape_of(7)

    def scatter(x):
        return tfdist.reducescatter(x, tfdist.Sum, compression, prescale_factor=0.5, postscale_factor=3.0, name="x")

    scattered = wrap(scatter)(tf.constant(summable(shape, "bfloat16", tfdist.rank()).astype(kind)))
    expected = expected_sum(shape, "bfloat16", world).astype("float64") * 1.5
    assert_equal(scattered, own(expected.astype(kind), world))


@SIZES
def test_factors_have_the_precision_of_float64(world):
    for factor in (0.1, tf.constant(0.1, tf.float64)):
        mine = tf.fill([world], tf.constant(2.0 ** tfdist.rank(), tf.float64))
        (scattered,) = tfdist.reducescatter(mine, op=tfdist.Sum, postscale_factor=factor, name="x")
        assert float(scattered) == (2.0**world - 1) * 0.1


@SIZES
@MODES
@pytest.mark.parametrize("op", [tfdist.Sum, tfdist.Average], ids=["sum", "average"])
def test_group_of_all_dtypes(world, op, wrap):
    """Every tensor is dealt out by its own number of rows; averages take the floating ones."""
    dtypes, expected = (DTYPES, expected_sum) if op is tfdist.Sum else (FLOATING, expected_average)
    group = [(shape_of(rows), dtype) for rows in ROWS for dtype in dtypes]
    mine = [tf.constant(summable(shape, dtype, tfdist.rank())) for shape, dtype in group]
    scattered = wrap(lambda: tfdist.grouped_reducescatter(mine, op=op, name="group"))()
    for (shape, dtype), tensor in zip(group, scattered, strict=True):
        assert_equal(tensor, own(expected(shape, dtype, world), world))


@SIZES
def test_group_of_nothing(world):
    assert tfdist.grouped_reducescatter([], name="nothing") == []


@SIZES
@pytest.mark.parametrize("dtype", ["int8", "float16", "float64"])
def test_large_tensor(world, dtype):
    shape = (10_001, 5)
    scattered = tfdist.reducescatter(summable(shape, dtype, tfdist.rank()), op=tfdist.Sum, name="large")
    assert_equal(scattered, own(expected_sum(shape, dtype, world), world))


@SIZES
def test_gathered_parts_are_the_allreduce(world):
    mine = tf.constant(summable((7, 2), "float32", tfdist.rank()))
    parts = tfdist.reducescatter(mine, name="parts")
    assert np.array_equal(tfdist.allgather(parts, name="whole"), tfdist.allreduce(mine, name="whole"))
