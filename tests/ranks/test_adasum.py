"""Adasum: equal to a plain reference of Maleki et al. 2020, at any number of ranks; exact where the answer is known."""

import numpy as np
import pytest
import tensorflow as tf

import tfdist

# dtype -> a few roundings.
TOLERANCES = {"float16": 2.0**-9, "bfloat16": 2.0**-6, "float32": 2.0**-21, "float64": 2.0**-49}
MODES = pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
SIZES = pytest.mark.ranks(1, 2, 3, 4)


def values_of(rank, dtype, count=37, seed=0):
    """Neighbouring ranks neither agree nor are orthogonal."""
    generator = np.random.default_rng(10 * seed + rank)
    common = np.random.default_rng(1000 + seed).normal(size=count)
    return (common + generator.normal(size=count) * (rank + 1)).astype(tf.as_dtype(dtype).as_numpy_dtype)


def combine(a, b):
    """Equation 4 of the paper."""
    product = float(np.sum(a * b))
    of_a = 1 - product / (2 * float(np.sum(a * a))) if np.any(a) else 1.0
    of_b = 1 - product / (2 * float(np.sum(b * b))) if np.any(b) else 1.0
    return of_a * a + of_b * b


def reference(vectors):
    """A binary tree over neighbours; the last one waits where the number is odd."""
    level = [np.asarray(vector, "float64") for vector in vectors]
    while len(level) > 1:
        level = [combine(*level[i : i + 2]) if i + 1 < len(level) else level[i] for i in range(0, len(level), 2)]
    return level[0]


def assert_close(tensor, expected, tolerance):
    """Relative to the largest element: terms cancel."""
    assert np.abs(tf.cast(tensor, tf.float64) - expected).max() <= tolerance * max(np.abs(expected).max(), 1e-30)


@SIZES
@MODES
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_reference(world, dtype, wrap):
    reduced = wrap(lambda x: tfdist.allreduce(x, op=tfdist.Adasum, name="x"))(values_of(tfdist.rank(), dtype))
    assert reduced.dtype == tf.as_dtype(dtype)
    assert_close(reduced, reference([values_of(rank, dtype) for rank in range(world)]), TOLERANCES[dtype])
    same = tfdist.allgather_object(tf.io.serialize_tensor(reduced).numpy(), name="results")
    assert len(set(same)) == 1, "the bits differ by rank"


@SIZES
@MODES
def test_each_tensor_of_a_group_by_itself(world, wrap):
    """As if each were reduced alone, whatever travels beside it; fewer elements than ranks, one and none included."""
    counts = [37, 1, 0, 2, 50_001]
    group = [(count, dtype) for count in counts for dtype in ("float32", "float64")]
    mine = [values_of(tfdist.rank(), dtype, count, seed) for seed, (count, dtype) in enumerate(group)]
    reduced = wrap(lambda: tfdist.grouped_allreduce(mine, op=tfdist.Adasum, name="group"))()
    for seed, ((count, dtype), tensor) in enumerate(zip(group, reduced, strict=True)):
        assert tensor.shape == (count,)
        if count:
            expected = reference([values_of(rank, dtype, count, seed) for rank in range(world)])
            assert_close(tensor, expected, TOLERANCES[dtype])


@SIZES
@pytest.mark.parametrize("compression", list(tfdist.Compression), ids=lambda compression: compression.value)
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_what_ranks_agree_on_is_averaged(world, dtype, compression):
    x = tf.constant([3, -4, 0, 12], dtype)
    reduced = tfdist.allreduce(x, op=tfdist.Adasum, compression=compression, name="x")
    assert np.array_equal(tf.cast(reduced, tf.float64), [3, -4, 0, 12])


@SIZES
@pytest.mark.parametrize("compression", list(tfdist.Compression), ids=lambda compression: compression.value)
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_what_ranks_disagree_on_is_added(world, dtype, compression):
    """Orthogonal: each rank has an element of its own."""
    x = tf.one_hot(tfdist.rank(), world, on_value=tf.cast(tfdist.rank() + 3, dtype), dtype=dtype)
    reduced = tfdist.allreduce(x, op=tfdist.Adasum, compression=compression, name="x")
    assert np.array_equal(tf.cast(reduced, tf.float64), np.arange(world) + 3.0)


@SIZES
def test_zeros_change_nothing(world):
    for source in range(world):
        x = tf.constant([1.5, -2.0, 7.0]) * (1.0 if tfdist.rank() == source else 0.0)
        reduced = tfdist.allreduce(x, op=tfdist.Adasum, name="x")
        assert np.array_equal(reduced, [1.5, -2.0, 7.0])


@SIZES
@pytest.mark.parametrize("compression", ["none", "bf16"])
def test_factors(world, compression):
    """Scaling before and after scales the result: Adasum of a multiple is the multiple of Adasum."""
    mine = tf.cast(values_of(tfdist.rank(), "bfloat16"), tf.float32)
    reduced = tfdist.allreduce(
        mine, op=tfdist.Adasum, compression=compression, prescale_factor=-2.0, postscale_factor=0.25, name="x"
    )
    expected = -0.5 * reference([values_of(rank, "bfloat16") for rank in range(world)])
    assert_close(reduced, expected, TOLERANCES["float32" if compression == "none" else "bfloat16"])
