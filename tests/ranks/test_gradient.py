"""Gradients of the collectives, compared with central differences of a function of what all ranks put in.

The function is f = sum over ranks of w_r . op(x)_r, with other weights on every rank. A gradient is that of f by this
rank's x: of the sum over ranks, which is what ranks that minimise the sum of their losses need.
"""

import importlib

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.ops.graph import gradient_factor
from tfdist.world import process_sets
from tfdist.world.session import session

MODES = pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
SIZES = pytest.mark.ranks(1, 2, 3, 4)
STEP = 1e-5


def numbers(shape, rank):
    """Away from zero, and nowhere near those of another rank."""
    generator = np.random.default_rng(17 + rank)
    return (generator.uniform(0.5, 1.5, shape) * generator.choice([-1, 1], shape)).astype("float64")


def with_zeros(shape, rank):
    """Element 0 is zero on rank 0 only, element 1 on the first two ranks."""
    x = numbers(shape, rank)
    x.flat[0] *= rank > 0
    x.flat[1] *= rank > 1
    return x


def reduce_by(op, **arguments):
    return lambda x, where: tfdist.allreduce(x, op=op, name="x", process_set=where, **arguments)


def in_parts(collective):
    """The tensor goes in as a group of three of other shapes; the results come back as one vector."""

    def call(x, where):
        flat = tf.reshape(x, [-1])
        results = collective([tf.reshape(flat[:2], [2, 1]), flat[2], flat[3:]], where)
        return tf.concat([tf.reshape(result, [-1]) for result in results], axis=0)

    return call


def exchange(x, where):
    """Rank r sends r + 1 rows to itself and one to everybody else."""
    splits = [tfdist.rank() + 1 if rank == tfdist.rank() else 1 for rank in where.ranks]
    return tfdist.alltoall(x, splits, name="x", process_set=where)[0]


def gather_slices(x, where):
    slices = tf.IndexedSlices(x, tf.range(tf.shape(x)[0]), tf.constant([9, 2]))
    return tfdist.allreduce(slices, name="x", postscale_factor=3.0, process_set=where).values


FACTORS = {"prescale_factor": -0.5, "postscale_factor": 3.0}
FIXED = (2, 3)

# Name -> input of a rank among n, its shape, the collective.
CASES = {
    "sum": (numbers, FIXED, reduce_by(tfdist.Sum, **FACTORS)),
    "average": (numbers, FIXED, reduce_by(tfdist.Average, **FACTORS)),
    "min": (numbers, FIXED, reduce_by(tfdist.Min)),
    "max, scaled": (numbers, FIXED, reduce_by(tfdist.Max, **FACTORS)),
    "product": (numbers, FIXED, reduce_by(tfdist.Product)),
    "product, scaled, with zeros": (with_zeros, FIXED, reduce_by(tfdist.Product, **FACTORS)),
    "adasum": (numbers, FIXED, reduce_by(tfdist.Adasum)),
    "adasum, scaled": (numbers, FIXED, reduce_by(tfdist.Adasum, **FACTORS)),
    "weighted average": (
        numbers,
        FIXED,
        lambda x, where: tfdist.grouped_allreduce(
            [x], name="x", weight=tfdist.rank() * 3 + 1, process_set=where, **FACTORS
        )[0],
    ),
    "grouped allreduce": (
        numbers,
        FIXED,
        in_parts(lambda parts, where: tfdist.grouped_allreduce(parts, op=tfdist.Sum, process_set=where)),
    ),
    "grouped product": (
        with_zeros,
        FIXED,
        in_parts(lambda parts, where: tfdist.grouped_allreduce(parts, op=tfdist.Product, process_set=where)),
    ),
    "grouped max": (
        numbers,
        FIXED,
        in_parts(lambda parts, where: tfdist.grouped_allreduce(parts, op=tfdist.Max, process_set=where)),
    ),
    "grouped adasum": (
        numbers,
        FIXED,
        in_parts(lambda parts, where: tfdist.grouped_allreduce(parts, op=tfdist.Adasum, process_set=where)),
    ),
    "slices": (numbers, lambda rank, n: (rank + 1, 2), gather_slices),
    "allgather": (
        numbers,
        lambda rank, n: ((rank + 1) % 3, 2),
        lambda x, where: tfdist.allgather(x, name="x", process_set=where),
    ),
    "grouped allgather": (
        numbers,
        FIXED,
        in_parts(lambda parts, where: tfdist.grouped_allgather(parts, process_set=where)),
    ),
    "broadcast": (
        numbers,
        FIXED,
        lambda x, where: tfdist.broadcast(x, where.ranks[-1], name="x", process_set=where),
    ),
    "grouped broadcast": (
        numbers,
        FIXED,
        in_parts(lambda parts, where: tfdist.grouped_broadcast(parts, where.ranks[0], process_set=where)),
    ),
    "alltoall": (
        numbers,
        lambda rank, n: (2 * n, 2),
        lambda x, where: tfdist.alltoall(x, name="x", process_set=where),
    ),
    "alltoall with splits": (numbers, lambda rank, n: (rank + n, 2), exchange),
    "reducescatter, sum": (
        numbers,
        lambda rank, n: (n + 1, 2),
        lambda x, where: tfdist.reducescatter(x, op=tfdist.Sum, name="x", process_set=where, **FACTORS),
    ),
    "reducescatter, average": (
        numbers,
        lambda rank, n: (2 * n - 1, 1),
        lambda x, where: tfdist.reducescatter(x, name="x", process_set=where),
    ),
    "grouped reducescatter": (
        numbers,
        FIXED,
        lambda x, where: tf.concat(
            [
                tf.reshape(part, [-1])
                for part in tfdist.grouped_reducescatter([x, x[:1] * x[1:]], op=tfdist.Sum, process_set=where)
            ],
            axis=0,
        ),
    ),
}


def weights_of(shape):
    return tf.constant(np.random.default_rng(5 + tfdist.rank()).uniform(0.5, 2.0, shape))


def differences(part_of_f, x, where):
    """Central differences of f by each element of this rank's x; all members evaluate f in lockstep."""
    counts = tfdist.allgather_object(x.size, process_set=where)
    parts = []
    for rank, count in zip(where.ranks, counts, strict=True):
        for index in range(count):
            for sign in (1, -1):
                moved = x.copy()
                if rank == tfdist.rank():
                    moved.flat[index] += sign * STEP
                parts.append(float(part_of_f(moved)))
    totals = tfdist.allreduce(tf.constant(parts, tf.float64), op=tfdist.Sum, name="f", process_set=where).numpy()
    slopes = (totals[::2] - totals[1::2]) / (2 * STEP)
    begin = sum(counts[: where.rank()])
    return slopes[begin : begin + x.size].reshape(x.shape)


def check(name, wrap, where, factor=1.0):
    values, shape, call = CASES[name]
    x = values(shape(tfdist.rank(), where.size()) if callable(shape) else shape, tfdist.rank())
    weights = weights_of(call(tf.constant(x), where).shape)
    part_of_f = wrap(lambda y: tf.reduce_sum(weights * call(y, where)))

    @wrap
    def gradient(y):
        with tf.GradientTape() as tape:
            tape.watch(y)
            part = tf.reduce_sum(weights * call(y, where))
        return tape.gradient(part, y)

    slopes = differences(lambda moved: part_of_f(tf.constant(moved)), x, where)
    steepest = tfdist.allreduce(np.abs(slopes).max(initial=0), op=tfdist.Max, name="steepest", process_set=where)
    assert steepest > 0.1, "f does not depend on what the ranks put in"
    np.testing.assert_allclose(gradient(tf.constant(x)), factor * slopes, rtol=1e-6, atol=1e-7)


@SIZES
@MODES
@pytest.mark.parametrize("name", CASES)
def test_among_all_ranks(world, name, wrap):
    check(name, wrap, tfdist.global_process_set)


@SIZES
@pytest.mark.parametrize("name", CASES)
def test_in_a_process_set(world, name):
    process_sets.start("dynamic", None)
    where = tfdist.add_process_set({1: [0], 2: [1], 3: [0, 2], 4: [1, 2, 3]}[world])
    try:
        if where.included():
            check(name, lambda function: function, where)
    finally:
        tfdist.remove_process_set(where)
        process_sets.start(None, None)


@SIZES
@pytest.mark.parametrize("op", [tfdist.Min, tfdist.Max], ids=["min", "max"])
def test_an_extreme_that_several_ranks_hold_is_shared_by_them(world, op):
    """Element 0 is the same everywhere, element 1 is extreme on all but rank 0."""
    other = 1.0 if op is tfdist.Max else -1.0
    x = tf.constant([5.0, 0.0 if tfdist.rank() == 0 else other])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum((tfdist.rank() + 1.0) * tfdist.allreduce(x, op=op, name="x"))
    total = world * (world + 1) / 2
    holds = world == 1 or tfdist.rank() > 0
    np.testing.assert_allclose(tape.gradient(y, x), [total / world, holds * total / max(world - 1, 1)], rtol=1e-6)


@SIZES
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_rounding_hides_no_holder_of_an_extreme(world, dtype):
    """The factor rounds the result to another value than any rank's input, and the wire to another one again."""
    x = tf.constant([1.0 / 3 + tfdist.rank()], dtype)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tfdist.allreduce(x, op=tfdist.Max, compression="bf16", prescale_factor=0.3, postscale_factor=0.7, name="x")
    expected = world * 0.21 if tfdist.rank() == world - 1 else 0.0
    np.testing.assert_allclose(tf.cast(tape.gradient(y, x), tf.float64), [expected], rtol=0.02)


@SIZES
def test_the_gradient_travels_compressed_too(world):
    """1 + 2^-12 is 1 in 16 bits."""
    x = tf.constant([1.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tfdist.allreduce(x, op=tfdist.Sum, compression="fp16", name="x") * (1 + 2.0**-12)
    assert np.array_equal(tape.gradient(y, x), [world])


GROUPS = {
    "allreduce": lambda tensors: tfdist.grouped_allreduce(tensors, op=tfdist.Sum, name="group"),
    "max": lambda tensors: tfdist.grouped_allreduce(tensors, op=tfdist.Max, name="group"),
    "product": lambda tensors: tfdist.grouped_allreduce(tensors, op=tfdist.Product, name="group"),
    "allgather": lambda tensors: tfdist.grouped_allgather(tensors, name="group"),
    "broadcast": lambda tensors: tfdist.grouped_broadcast(tensors, 0, name="group"),
    "reducescatter": lambda tensors: tfdist.grouped_reducescatter(tensors, op=tfdist.Sum, name="group"),
}


def gradients_of(loss, tensors):
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        value = loss(*tensors)
    return tape.gradient(value, tensors)


@tf.function
def gradients_in_a_function(loss, tensors):
    return gradients_of(loss, tensors)


# Where the tape is: it makes gradients in a graph in another way from each place.
TAPES = {
    "eager": gradients_of,
    "tape in a function": gradients_in_a_function,
    "tape around a function": lambda loss, tensors: gradients_of(tf.function(loss), tensors),
}


@SIZES
@pytest.mark.parametrize("tape", TAPES)
@pytest.mark.parametrize("name", GROUPS)
def test_group_of_which_one_result_matters(world, name, tape):
    """Beside whole numbers, which have no gradient, and a result that nobody uses."""
    rank = tfdist.rank()
    whole, flags = tf.fill([4], tf.constant(rank, tf.int64)), tf.fill([4], rank > 1)
    used, unused = TAPES[tape](
        lambda x, y: tf.reduce_sum(GROUPS[name]([whole, x, flags, y])[1]), [tf.fill([4], rank + 1.0), tf.fill([4], 7.0)]
    )
    assert unused is None or np.array_equal(unused, np.zeros(4))
    product = float(np.prod(np.arange(1, world + 1)))
    expected = {
        "allreduce": world,
        "max": world * (rank == world - 1),
        "product": world * product / (rank + 1),
        "allgather": world,
        "broadcast": world * (rank == 0),
        "reducescatter": 1,
    }
    np.testing.assert_allclose(used, np.full(4, expected[name]), rtol=1e-6)


@SIZES
@pytest.mark.parametrize("tape", TAPES)
@pytest.mark.parametrize("name", [*GROUPS, "alltoall"])
def test_rows_looked_up_in_the_result(world, name, tape):
    """The gradient of a lookup is a tf.IndexedSlices."""

    def loss(x):
        result = tfdist.alltoall(x, name="x") if name == "alltoall" else GROUPS[name]([x])[0]
        return tf.reduce_sum(tf.gather(result, [0, 0]))

    rank = tfdist.rank()
    (gradient,) = TAPES[tape](loss, [tf.reshape(tf.range(2.0 * world), [-1, 1]) + 1.0 + rank])
    first = {
        "allreduce": 2 * world,
        "max": 2 * world * (rank == world - 1),
        "product": 2 * world * np.prod([other + 1 for other in range(world) if other != rank]),
        "allgather": 2 * world * (rank == 0),
        "broadcast": 2 * world * (rank == 0),
    }
    expected = np.zeros((2 * world, 1))
    if name in first:
        expected[0] = first[name]
    else:  # each rank's result begins with another row; in an alltoall rank 0 gave it
        expected[::2] = 2 * (name == "reducescatter" or rank == 0)
    np.testing.assert_allclose(tf.convert_to_tensor(gradient), expected, rtol=1e-6)


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("tape", TAPES)
def test_independent_collectives_keep_one_order(world, tape):
    """Equal in all but their values, so that no check would see them swapped; one rank computes slowly."""

    def loss(x, y):
        work = tf.zeros([100 if tfdist.rank() == 0 else 1, 64, 64])
        slow = tf.reduce_sum(tf.foldl(lambda total, matrix: total @ matrix, work))
        parts = [tfdist.allreduce(part, op=tfdist.Sum) for part in (x * (1.0 + slow), y, x + y, x - y)]
        weights = [10.0**index * (tfdist.rank() + 1) for index in range(4)]
        return tf.add_n([weight * tf.reduce_sum(part) for weight, part in zip(weights, parts, strict=True)])

    for _ in range(5):
        of_x, of_y = TAPES[tape](loss, [tf.ones([2]), tf.ones([2])])
        total = world * (world + 1) / 2
        assert np.array_equal(of_x, np.full(2, total * (1 + 100 + 1000)))
        assert np.array_equal(of_y, np.full(2, total * (10 + 100 - 1000)))


@SIZES
@pytest.mark.parametrize("tape", TAPES)
def test_a_rank_without_rows_takes_part_in_the_gradient(world, tape):
    """Its own gradient is known to be empty before anything runs."""
    x = tf.reshape(tf.range(4.0 * tfdist.rank()), [-1, 2])
    splits = [tfdist.rank() * 2 if rank == 0 else 0 for rank in range(world)]

    def loss(rows):
        gathered = tfdist.allgather(rows, name="gathered")
        sent, _ = tfdist.alltoall(rows, splits, name="sent")
        return tf.reduce_sum(gathered) + 10 * tf.reduce_sum(sent)

    (gradient,) = TAPES[tape](loss, [x])
    assert np.array_equal(gradient, np.full((2 * tfdist.rank(), 2), world + 10.0))


@SIZES
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_dtype_of_the_gradient(world, dtype):
    """That of the input, in the reductions that compute their gradient in a wider type, too."""
    x = tf.cast(tf.fill([3], tfdist.rank() + 1), dtype)
    for op in (tfdist.Average, tfdist.Product, tfdist.Max, tfdist.Adasum):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tfdist.allreduce(x, op=op, name=op.value)
        gradient = tape.gradient(y, x)
        assert gradient.dtype == x.dtype
        assert np.all(np.isfinite(tf.cast(gradient, tf.float32)))


# Where Horovod's gradient is not that of the sum over n ranks: by how much.
HOROVODS = {
    "average": lambda n: 1,
    "alltoall": lambda n: 1,
    "allgather": lambda n: 1 / n,
    "grouped allgather": lambda n: 1 / n,
    "broadcast": lambda n: 1 / n,
    "reducescatter, sum": lambda n: n,
    "reducescatter, average": lambda n: n,
    "grouped reducescatter": lambda n: n,
}


@SIZES
@MODES
@pytest.mark.parametrize("name", HOROVODS)
def test_of_horovod_if_it_is_chosen(world, name, wrap, monkeypatch):
    monkeypatch.setattr(session, "gradients", "0.28")
    check(name, wrap, tfdist.global_process_set, HOROVODS[name](world))


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("name", ["allgather", "broadcast", "reducescatter"])
def test_a_script_with_horovods_names_is_told_once(world, name, monkeypatch, caplog):
    importlib.import_module("tfdist.tensorflow")  # as the script does
    monkeypatch.setattr(gradient_factor, "_said", set())
    x = tf.ones([2])
    for chosen in ("exact", "", ""):
        monkeypatch.setattr(session, "gradients", chosen)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = {"broadcast": lambda: tfdist.broadcast(x, 0)}.get(name, lambda: getattr(tfdist, name)(x))()
        tape.gradient(y, x)
        assert chosen != "exact" or not caplog.messages
    words = f"{world} times" if name == "reducescatter" else f"1/{world} of"
    told = (
        f"tfdist rank 0: the gradient of {name} is that of the sum over the {world} ranks; Horovod's is {words} that."
    )
    assert [text.split(" For a script")[0] for text in caplog.messages] == [told] * (tfdist.rank() == 0 and world > 1)
