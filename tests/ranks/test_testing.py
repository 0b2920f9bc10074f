"""`summable` against the real collectives."""

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.testing import (
    assert_close,
    assert_identical_on_ranks,
    expected_average,
    expected_max,
    expected_min,
    expected_sum,
    summable,
)

SHAPE = (3, 1001)
FLOATS = ["float16", "bfloat16", "float32", "float64"]
OTHERS = ["int8", "uint8", "int16", "uint16", "int32", "int64"]


def reduced(dtype, op, seed=0):
    mine = tf.constant(summable(SHAPE, dtype, tfdist.rank(), seed))
    return tfdist.allreduce(mine, op=op, name=f"{dtype} {seed}").numpy()


@pytest.mark.ranks(1, 2, 3, 4)
def test_reductions_are_exact(world):
    for dtype in FLOATS + OTHERS:
        for seed in range(2):
            assert np.array_equal(reduced(dtype, tfdist.Sum, seed), expected_sum(SHAPE, dtype, world, seed)), dtype
        assert np.array_equal(reduced(dtype, tfdist.Min), expected_min(SHAPE, dtype, world)), dtype
        assert np.array_equal(reduced(dtype, tfdist.Max), expected_max(SHAPE, dtype, world)), dtype


@pytest.mark.ranks(1, 2, 4)
def test_averages_over_a_power_of_two_are_exact(world):
    for dtype in FLOATS:
        assert np.array_equal(reduced(dtype, tfdist.Average), expected_average(SHAPE, dtype, world)), dtype


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("compression", ["fp16", "bf16"])
def test_sixteen_bit_wire_is_exact_for_values_it_holds(world, compression):
    mine = summable(SHAPE, "bfloat16", tfdist.rank()).astype(np.float32)
    total = tfdist.allreduce(tf.constant(mine), op=tfdist.Sum, compression=compression)
    assert np.array_equal(total.numpy(), expected_sum(SHAPE, "bfloat16", world).astype(np.float32))


@pytest.mark.ranks(2, 3)
def test_difference_between_ranks_is_found_on_every_rank(world):
    assert_identical_on_ranks([np.arange(3.0)])
    mine = np.arange(3.0)
    mine[1] += 1e-9 * (tfdist.rank() == world - 1)
    with pytest.raises(AssertionError, match=rf"weights\[1\] differs between rank 0 and rank {world - 1}"):
        assert_identical_on_ranks([np.zeros(2), mine])


@pytest.mark.ranks(2)
def test_equal_bytes_of_another_shape_or_dtype_differ(world):
    other = tfdist.rank() == 1
    for mine in (np.zeros((3, 2) if other else (2, 3)), np.zeros(2, "int32" if other else "float32")):
        with pytest.raises(AssertionError, match=r"weights\[0\] is .* on rank 0, .* on rank 1"):
            assert_identical_on_ranks([mine])


@pytest.mark.ranks(1)
@pytest.mark.parametrize("shapes", [((), (5,)), ((3, 1), (1, 4)), ((0,), (1,))])
def test_close_means_the_same_shape(world, shapes):
    assert_close([np.zeros(shapes[0])], [np.zeros(shapes[0])])
    with pytest.raises(AssertionError, match="array 0 has shape"):
        assert_close([np.zeros(shapes[0])], [np.zeros(shapes[1])])
