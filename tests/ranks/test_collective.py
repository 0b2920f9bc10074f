"""The collectives: exact results from inputs that differ by rank, gradients, eager and in a function."""

import numpy as np
import pytest
import tensorflow as tf

import tfdist

DTYPES = ["bool", "uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
REDUCTIONS = {
    tfdist.Sum: np.sum,
    tfdist.Min: np.min,
    tfdist.Max: np.max,
    tfdist.Product: np.prod,
}
MODES = pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
SIZES = pytest.mark.ranks(1, 2, 3, 4)


def values_of(rank, dtype, shape=(2, 3)):
    """Small integers, different on every rank; exact in every dtype, their sums and products too."""
    count = int(np.prod(shape))
    numbers = (np.arange(count) + rank) % 3 + (0 if dtype == "bool" else 1)
    return tf.cast(tf.reshape(tf.constant(numbers % 2 if dtype == "bool" else numbers), shape), dtype)


def all_values(world, dtype, shape=(2, 3)):
    return np.stack([tf.cast(values_of(rank, dtype, shape), tf.float64).numpy() for rank in range(world)])


@SIZES
@MODES
@pytest.mark.parametrize("op", REDUCTIONS, ids=[op.value for op in REDUCTIONS])
@pytest.mark.parametrize("dtype", DTYPES)
def test_allreduce(world, dtype, op, wrap):
    reduced = wrap(lambda x: tfdist.allreduce(x, op=op, name="x"))(values_of(tfdist.rank(), dtype))
    expected = REDUCTIONS[op](all_values(world, dtype), axis=0)
    if dtype == "bool":
        expected = expected > 0
    assert reduced.dtype == tf.as_dtype(dtype)
    assert np.array_equal(tf.cast(reduced, tf.float64), np.asarray(expected, "float64"))


@SIZES
@MODES
@pytest.mark.parametrize("compression", ["none", "fp16", "bf16"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_average(world, dtype, compression, wrap):
    """Halves are exact in 16 bits; three ranks are compared within one rounding."""
    reduced = wrap(lambda x: tfdist.allreduce(x, compression=compression, name="x"))(values_of(tfdist.rank(), dtype))
    expected = np.mean(all_values(world, dtype), axis=0)
    bits = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}[dtype]
    bits = min(bits, {"none": 53, "fp16": 11, "bf16": 8}[compression])
    assert np.allclose(tf.cast(reduced, tf.float64), expected, rtol=2.0**-bits, atol=0)


@SIZES
@MODES
def test_grouped_allreduce_keeps_order_and_types(world, wrap):
    tensors = [values_of(tfdist.rank(), dtype, (index,)) for index, dtype in enumerate(DTYPES)]
    reduced = wrap(lambda: tfdist.grouped_allreduce(tensors, op=tfdist.Max, name="group"))()
    for index, (dtype, tensor) in enumerate(zip(DTYPES, reduced, strict=True)):
        assert tensor.dtype == tf.as_dtype(dtype)
        assert np.array_equal(tf.cast(tensor, tf.float64), all_values(world, dtype, (index,)).max(axis=0))


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
@MODES
@pytest.mark.parametrize("dtype", DTYPES)
def test_allgather_with_rows_that_differ_by_rank(world, dtype, wrap):
    """Rank 0 gives no row."""
    mine = values_of(tfdist.rank(), dtype, (tfdist.rank(), 3))
    gathered = wrap(lambda x: tfdist.allgather(x, name="rows"))(mine)
    expected = np.concatenate([values_of(rank, dtype, (rank, 3)) for rank in range(world)])
    assert gathered.dtype == tf.as_dtype(dtype)
    assert np.array_equal(gathered, expected)


@SIZES
def test_allgather_of_scalars(world):
    assert np.array_equal(tfdist.allgather(tf.constant(tfdist.rank() * 2), name="scalar"), np.arange(world) * 2)


@SIZES
@MODES
@pytest.mark.parametrize("dtype", DTYPES)
def test_broadcast_from_every_root(world, dtype, wrap):
    for root in range(world):
        mine = values_of(tfdist.rank(), dtype)
        received = wrap(lambda x, root=root: tfdist.broadcast(x, root, name="x"))(mine)
        assert np.array_equal(received, values_of(root, dtype))
        assert np.array_equal(mine, values_of(tfdist.rank(), dtype)), "the input was overwritten"


@SIZES
@MODES
def test_broadcast_variables_in_place(world, wrap):
    """A tensor read before keeps its value."""
    root = world - 1
    variables = [tf.Variable(values_of(tfdist.rank(), dtype)) for dtype in DTYPES]
    before = [variable.value() for variable in variables]
    wrap(lambda: tfdist.broadcast_variables(variables, root))()
    for dtype, variable, earlier in zip(DTYPES, variables, before, strict=True):
        assert np.array_equal(variable, values_of(root, dtype))
        assert np.array_equal(earlier, values_of(tfdist.rank(), dtype))


@SIZES
def test_objects(world):
    mine = {"rank": tfdist.rank(), "text": "x" * tfdist.rank()}
    everything = tfdist.allgather_object(mine, name="objects")
    assert everything == [{"rank": rank, "text": "x" * rank} for rank in range(world)]
    for root in range(world):
        assert tfdist.broadcast_object(mine, root, name="object") == everything[root]


@SIZES
@pytest.mark.parametrize("op", [tfdist.Sum, tfdist.Average], ids=["sum", "average"])
def test_gradient_of_allreduce(world, op):
    """f = sum over ranks of w_r * allreduce(x)_r: the gradient is the same reduction of the weights."""
    x = tf.constant([1.0, 2.0])
    weight = tf.constant([1.0, 10.0]) * (tfdist.rank() + 1)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(weight * tfdist.allreduce(x, op=op, name="x"))
    gradient = tape.gradient(y, x)
    total = world * (world + 1) / 2 / (world if op is tfdist.Average else 1)
    assert np.allclose(gradient, [total, 10 * total], rtol=1e-6)


@SIZES
def test_gradient_of_allgather(world):
    x = tf.ones([tfdist.rank() + 1, 2])
    rows = world * (world + 1) // 2
    weight = tf.reshape(tf.range(rows * 2, dtype=tf.float32), [rows, 2])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(weight * tfdist.allgather(x, name="x"))
    begin = tfdist.rank() * (tfdist.rank() + 1) // 2
    assert np.array_equal(tape.gradient(y, x), world * weight[begin : begin + tfdist.rank() + 1])


@SIZES
def test_gradient_of_broadcast(world):
    root = world - 1
    x = tf.constant([1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(tfdist.broadcast(x, root, name="x")) * (tfdist.rank() + 1)
    expected = world * (world + 1) / 2 if tfdist.rank() == root else 0.0
    assert np.array_equal(tape.gradient(y, x), [expected, expected])


def test_program_order_holds_when_one_rank_is_late(world):
    """Independent collectives of one function; the first input takes longer on one rank only."""

    @tf.function
    def step(x, work):
        slow = tf.foldl(lambda total, matrix: total @ matrix, work)
        first = tfdist.allreduce(x + 0.0 * tf.reduce_sum(slow), op=tfdist.Sum, name="first")
        second = tfdist.allreduce(x * 10, op=tfdist.Sum, name="second")
        return first, second

    rounds = 200 if tfdist.rank() == 0 else 1
    first, second = step(tf.constant(tfdist.rank() + 1.0), tf.zeros([rounds, 128, 128]))
    assert float(second) == 10 * float(first) == 10 * world * (world + 1) / 2


def test_shapes_are_known_in_a_function(world):
    @tf.function(input_signature=[tf.TensorSpec([None, 3]), tf.TensorSpec([])])
    def shapes(x, scalar):
        assert tfdist.allreduce(x).shape.as_list() == [None, 3]
        assert tfdist.broadcast(x, 0).shape.as_list() == [None, 3]
        assert tfdist.allgather(x).shape.as_list() == [None, 3]
        assert tfdist.allgather(scalar, name="scalar").shape.as_list() == [None]
        return x

    shapes(tf.zeros([2, 3]), tf.constant(1.0))


@SIZES
def test_topology(world):
    assert tfdist.size() == world
    assert sorted(tfdist.allgather_object(tfdist.rank(), name="ranks")) == list(range(world))
    assert (tfdist.local_rank(), tfdist.local_size()) == (tfdist.rank(), world)
    assert (tfdist.cross_rank(), tfdist.cross_size()) == (0, 1)
    assert tfdist.is_homogeneous()


@SIZES
def test_time_in_communication_grows(world):
    before = tfdist.runtime.communication_seconds()
    tfdist.barrier(name="tick")
    assert tfdist.runtime.communication_seconds() > before


@SIZES
def test_mpi4py_beside(world):
    from mpi4py import MPI

    assert MPI.COMM_WORLD.allreduce(tfdist.rank()) == world * (world - 1) // 2
    assert float(tfdist.allreduce(float(tfdist.rank()), op=tfdist.Sum, name="x")) == world * (world - 1) / 2


@pytest.mark.ranks(2, 3, 4)
def test_program_order_holds_through_control_flow(world):
    """Collectives in a cond and a loop that capture variables, and beside them; one rank is slow inside the cond."""
    variable = tf.Variable(1.0)
    sink = tf.Variable(tf.zeros([3]))
    rounds = 100 if tfdist.rank() == 0 else 1

    @tf.function
    def step(x, work):
        def in_cond():
            slow = tf.foldl(lambda total, matrix: total @ matrix, work)
            variable.assign(tfdist.allreduce(variable * x + 0.0 * tf.reduce_sum(slow), op=tfdist.Sum, name="in cond"))
            return 0

        tf.cond(variable > 0, in_cond, lambda: 0)
        after = tfdist.allreduce(x, op=tfdist.Sum, name="after the cond")
        for _ in tf.range(3):
            variable.assign_add(tfdist.allreduce(1.0, op=tfdist.Sum, name="in loop"))
        tfdist.broadcast_variables([sink], root_rank=0)
        last = tfdist.allreduce(x, op=tfdist.Max, name="last")
        tfdist.barrier(name="end")
        return after, last

    total = world * (world + 1) / 2
    for _ in range(5):
        variable.assign(1.0)
        after, last = step(tf.constant(tfdist.rank() + 1.0), tf.zeros([rounds, 64, 64]))
        assert (float(after), float(last)) == (total, world)
        assert float(variable) == total + 3 * world
