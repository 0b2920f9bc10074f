"""Allreduce: exact results from inputs that differ by rank, eager and in a function. Adasum has its own test."""

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.testing import assert_equal, expected_average, expected_max, expected_min, expected_sum, summable

DTYPES = ["bool", "uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
FLOATING = DTYPES[-4:]
MODES = pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
SIZES = pytest.mark.ranks(1, 2, 3, 4)
SHAPE = (5, 3)


def factors_of(rank, dtype, shape=SHAPE):
    """1, 2 or 3, another one on every rank; products over four ranks are exact in every dtype."""
    numbers = (np.arange(int(np.prod(shape))) + rank) % 3 + (0 if dtype == "bool" else 1)
    return tf.cast(numbers.reshape(shape), dtype)


@SIZES
@MODES
@pytest.mark.parametrize("dtype", DTYPES)
def test_sum_min_max_product(world, dtype, wrap):
    def reduce(x, factors):
        ops = (tfdist.Sum, tfdist.Min, tfdist.Max)
        return [tfdist.allreduce(x, op=op, name=op.value) for op in ops] + [
            tfdist.allreduce(factors, op=tfdist.Product, name="product")
        ]

    mine = tf.constant(summable(SHAPE, dtype, tfdist.rank()))
    total, least, most, product = wrap(reduce)(mine, factors_of(tfdist.rank(), dtype))
    assert_equal(total, expected_sum(SHAPE, dtype, world))
    assert_equal(least, expected_min(SHAPE, dtype, world))
    assert_equal(most, expected_max(SHAPE, dtype, world))
    everything = np.stack([factors_of(rank, dtype) for rank in range(world)])
    assert_equal(product, np.prod(everything.astype("float64"), axis=0).astype(everything.dtype))
    assert np.array_equal(mine, summable(SHAPE, dtype, tfdist.rank())), "the input was overwritten"


@SIZES
@MODES
@pytest.mark.parametrize("dtype", FLOATING)
def test_average(world, dtype, wrap):
    """Rounded once: the sum is exact, and the quotient is rounded to the dtype."""
    mine = tf.constant(summable(SHAPE, dtype, tfdist.rank()))
    by_default, by_old_name = wrap(lambda x: (tfdist.allreduce(x), tfdist.allreduce(x, average=True)))(mine)
    for average in (by_default, by_old_name):
        assert_equal(average, expected_average(SHAPE, dtype, world))


@SIZES
@MODES
@pytest.mark.parametrize("compression", ["fp16", "bf16"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_compression(world, dtype, compression, wrap):
    """The inputs fit 16 bits, so only the average of three is rounded, once, to the wire type."""
    wire = tf.as_dtype({"fp16": "float16", "bf16": "bfloat16"}[compression]).as_numpy_dtype

    def reduce(x):
        ops = (tfdist.Sum, tfdist.Max, tfdist.Average)
        return [tfdist.allreduce(x, op=op, compression=compression, name=op.value) for op in ops]

    total, most, average = wrap(reduce)(tf.constant(summable(SHAPE, "bfloat16", tfdist.rank()).astype(dtype)))
    assert_equal(total, expected_sum(SHAPE, "bfloat16", world).astype(dtype))
    assert_equal(most, expected_max(SHAPE, "bfloat16", world).astype(dtype))
    exact = expected_sum(SHAPE, "bfloat16", world).astype("float64") / world
    assert_equal(average, exact.astype(wire).astype(dtype))


@SIZES
@MODES
@pytest.mark.parametrize("compression", list(tfdist.Compression), ids=lambda compression: compression.value)
@pytest.mark.parametrize("dtype", FLOATING)
def test_factors(world, dtype, compression, wrap):
    """Before and after; a negative factor before turns the least into the most."""

    def reduce(x):
        arguments = {"prescale_factor": -0.5, "postscale_factor": 3.0, "compression": compression}
        return [tfdist.allreduce(x, op=op, name=op.value, **arguments) for op in (tfdist.Sum, tfdist.Min)]

    kind = tf.as_dtype(dtype).as_numpy_dtype
    total, least = wrap(reduce)(tf.constant(summable(SHAPE, "bfloat16", tfdist.rank()).astype(kind)))
    assert_equal(total, (expected_sum(SHAPE, "bfloat16", world).astype("float64") * -1.5).astype(kind))
    assert_equal(least, (expected_max(SHAPE, "bfloat16", world).astype("float64") * -1.5).astype(kind))


@SIZES
def test_factors_have_the_precision_of_float64(world):
    """0.1 as a float32 is another number."""
    for factor in (0.1, np.float64(0.1), tf.constant(0.1, tf.float64)):
        mine = tf.constant([tfdist.rank() + 1.0], tf.float64)
        (reduced,) = tfdist.grouped_allreduce([mine], op=tfdist.Max, prescale_factor=factor, name="x")
        assert float(reduced[0]) == 0.1 * world


@SIZES
def test_factors_are_read_at_run_time(world):
    """The same trace, another factor: what a change of the number of ranks needs."""
    factor = tf.Variable(2.0, dtype=tf.float64)

    @tf.function
    def reduce(x):
        return tfdist.grouped_allreduce([x], op=tfdist.Sum, prescale_factor=factor, postscale_factor=0.5)[0]

    x = tf.constant([tfdist.rank() + 1.0])
    total = world * (world + 1) / 2
    assert float(reduce(x)[0]) == total
    factor.assign(8.0)
    assert float(reduce(x)[0]) == 4 * total
    assert reduce.experimental_get_tracing_count() == 1


@pytest.mark.ranks(4)
def test_average_of_large_halves_does_not_overflow(world):
    """The sum, 240,000, does not fit float16; the average does."""
    for dtype, compression in (("float16", "none"), ("float32", "fp16")):
        average = tfdist.allreduce(tf.fill([5], tf.cast(60000, dtype)), compression=compression, name=dtype)
        assert np.array_equal(tf.cast(average, tf.float64), np.full(5, 60000.0))


@SIZES
@pytest.mark.parametrize("dtype", ["int16", "float16", "float64"])
def test_large_tensor(world, dtype):
    """Longer than what travels in one message, and not a multiple of the number of ranks."""
    shape = (50_001,)
    reduced = tfdist.allreduce(summable(shape, dtype, tfdist.rank()), op=tfdist.Sum, name="large")
    assert_equal(reduced, expected_sum(shape, dtype, world))


@SIZES
@MODES
def test_group_of_all_dtypes_and_shapes(world, wrap):
    """Scalars, empty tensors and others; those of one dtype are not neighbours."""
    shapes = [(), (0, 2), (7,), (2, 1, 3)]
    group = [(shape, dtype, seed) for seed, shape in enumerate(shapes) for dtype in DTYPES]
    tensors = [tf.constant(summable(shape, dtype, tfdist.rank(), seed)) for shape, dtype, seed in group]
    reduced = wrap(lambda: tfdist.grouped_allreduce(tensors, op=tfdist.Sum, name="group"))()
    for tensor, (shape, dtype, seed) in zip(reduced, group, strict=True):
        assert_equal(tensor, expected_sum(shape, dtype, world, seed))


@SIZES
@MODES
def test_results_stay_while_somebody_holds_them(world, wrap):
    """Memory of results is used again for the next call, but only what nobody looks at any more."""
    variable = tf.Variable(tf.zeros([1000]))

    def reduce():
        (result,) = tfdist.grouped_allreduce([variable.value()], op=tfdist.Sum, name="again")
        return result

    call = wrap(reduce)
    held, arrays = [], []
    for step in range(4):
        variable.assign(tf.fill([1000], float(step + tfdist.rank())))
        result = call()
        held.append(result if step % 2 else result[:500])
        arrays.append(np.asarray(memoryview(result)))
        del result
    for step, (tensor, array) in enumerate(zip(held, arrays, strict=True)):
        expected = step * world + sum(range(world))
        assert (tensor.numpy() == expected).all()
        assert (array == expected).all()


@SIZES
def test_group_of_nothing(world):
    assert tfdist.grouped_allreduce([], name="nothing") == []


def slices_of(rank, dtype="float32", seed=0):
    """No row on rank 0, one on rank 1, and so on; some rows have the same index."""
    indices = tf.constant(np.arange(rank) % 2 + rank, tf.int64)
    return tf.IndexedSlices(summable((rank, 2), dtype, rank, seed), indices, tf.constant([9, 2]))


def assert_gathered(slices, world, dtype="float32", seed=0, factor=1.0):
    """The rows of all ranks one after the other, each scaled."""
    assert isinstance(slices, tf.IndexedSlices)
    parts = [slices_of(rank, dtype, seed) for rank in range(world)]
    values = np.concatenate([np.asarray(part.values) for part in parts])
    assert_equal(tf.convert_to_tensor(slices.values), (values * factor).astype(values.dtype))
    assert_equal(tf.convert_to_tensor(slices.indices), np.concatenate([part.indices for part in parts]))
    assert np.array_equal(slices.dense_shape, [9, 2])


@SIZES
@MODES
def test_indexed_slices_keep_their_place_in_a_group(world, wrap):
    def reduce():
        tensors = [
            slices_of(tfdist.rank()),
            tf.constant(summable((3,), "float64", tfdist.rank(), 1)),
            slices_of(tfdist.rank(), "float64", 2),
            tf.constant(summable((), "float32", tfdist.rank(), 3)),
        ]
        return tfdist.grouped_allreduce(
            tensors, op=tfdist.Sum, prescale_factor=4.0, postscale_factor=0.5, name="gradients"
        )

    first, second, third, fourth = wrap(reduce)()
    assert_gathered(first, world, factor=2.0)
    assert_equal(second, 2 * expected_sum((3,), "float64", world, 1))
    assert_gathered(third, world, "float64", 2, factor=2.0)
    assert_equal(fourth, 2 * expected_sum((), "float32", world, 3))


@SIZES
@MODES
def test_indexed_slices_alone(world, wrap):
    """Whole numbers are summed; an average divides every row by the number of ranks."""
    mine = slices_of(tfdist.rank())
    whole = slices_of(tfdist.rank(), "int32")
    averaged, summed, counted = wrap(
        lambda: (
            tfdist.allreduce(mine, name="averaged", prescale_factor=float(world)),
            tfdist.allreduce(mine, op=tfdist.Sum, name="summed"),
            tfdist.allreduce(whole, op=tfdist.Sum, name="counted"),
        )
    )()
    assert_gathered(averaged, world)
    assert_gathered(summed, world)
    assert_gathered(counted, world, "int32")


# By world size, with totals that are powers of two, so that every share is exact.
WEIGHTS = {1: [3], 2: [1, 3], 3: [1, 1, 2], 4: [1, 2, 4, 1]}
WITH_ZERO = {1: [0], 2: [0, 5], 3: [0, 3, 1], 4: [0, 5, 0, 3]}


@SIZES
@MODES
@pytest.mark.parametrize("weights", [WEIGHTS, WITH_ZERO], ids=["weights", "with zeros"])
def test_weighted_average(world, weights, wrap):
    mine = [tf.constant(summable(SHAPE, "bfloat16", tfdist.rank())), tf.fill([2], tfdist.rank() + 1.0)]
    weight = weights[world][tfdist.rank()]
    average = wrap(lambda w: tfdist.grouped_allreduce(mine, weight=w, name="x"))
    total = max(sum(weights[world]), 1)
    for given in (weight, tf.constant(weight, tf.int32), tf.Variable(weight, dtype=tf.int64)):
        first, second = average(given)
        parts = [w * summable(SHAPE, "bfloat16", rank).astype("float64") for rank, w in enumerate(weights[world])]
        assert_equal(first, (sum(parts) / total).astype(first.numpy().dtype))
        expected = sum(w * (rank + 1) for rank, w in enumerate(weights[world])) / total
        assert_equal(second, np.full(2, expected, "float32"))


@SIZES
def test_largest_weight(world):
    """All count alike, as without weights."""
    (average,) = tfdist.grouped_allreduce([tf.constant(tfdist.rank() + 1.0)], weight=2**32 - 1, name="x")
    assert float(average) == (world + 1) / 2
