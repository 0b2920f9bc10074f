"""Join: ranks that have run out of data take part with zeros, until all have."""

import re

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.errors import MismatchError
from tfdist.testing import summable

MODES = pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
SIZES = pytest.mark.ranks(1, 2, 3, 4)

# Name -> steps that a rank of a world takes before it joins.
STEPS = {
    "ascending": lambda rank, world: rank,
    "descending": lambda rank, world: 2 * (world - 1 - rank),
    "all alike": lambda rank, world: 2,
    "one is longer": lambda rank, world: 3 if rank == 0 else 1,
}


def steps_of(name, world):
    return [STEPS[name](rank, world) for rank in range(world)]


def last_of(steps):
    """Who took the most steps joined last; of several the highest rank."""
    return max(rank for rank, count in enumerate(steps) if count == max(steps))


def run(steps, step):
    """Takes this rank's steps, each with the ranks that have not joined yet, and joins."""
    for index in range(steps[tfdist.rank()]):
        step([rank for rank, count in enumerate(steps) if count > index])
    return tfdist.join()


@SIZES
@pytest.mark.parametrize("name", STEPS)
def test_last_rank(world, name):
    """The ranks are in step afterwards, and may join again."""
    steps = steps_of(name, world)
    for _ in range(2):
        last = run(steps, lambda present: tfdist.barrier(name="step"))
        assert isinstance(last, int)
        assert last == last_of(steps)
        assert float(tfdist.allreduce(tfdist.rank() + 1.0, op=tfdist.Sum, name="after")) == world * (world + 1) / 2


@SIZES
def test_at_once(world):
    assert tfdist.join() == world - 1
    assert tfdist.join() == world - 1


@SIZES
@MODES
@pytest.mark.parametrize("name", STEPS)
def test_sum_and_average(world, name, wrap):
    """An average still divides by the number of all ranks."""

    def reduce(x):
        return (
            tfdist.allreduce(x, op=tfdist.Sum, name="sum"),
            tfdist.allreduce(x, name="average", postscale_factor=float(world)),
        )

    function = wrap(reduce)
    x = tf.constant(summable((3, 2), "float64", tfdist.rank()))

    def step(present):
        expected = sum(summable((3, 2), "float64", rank) for rank in present)
        for tensor in function(x):
            assert np.allclose(tensor, expected, rtol=1e-15, atol=0)

    assert run(steps_of(name, world), step) == last_of(steps_of(name, world))


@SIZES
@MODES
def test_group_with_weights_compression_and_slices(world, wrap):
    """Who has joined counts for nothing: the average is that of the others."""

    @wrap
    def reduce(x, weight):
        dense = tfdist.grouped_allreduce([x, tf.cast(x, tf.float64)], weight=weight, compression="bf16", name="dense")
        slices = tf.IndexedSlices(x[tf.newaxis], tf.constant([tfdist.rank()]), tf.constant([8, 4]))
        return *dense, tfdist.allreduce(slices, op=tfdist.Sum, name="slices")

    x = tf.constant(summable((4,), "bfloat16", tfdist.rank()).astype("float32"))

    def step(present):
        first, second, slices = reduce(x, tf.constant(5, tf.int64))
        expected = np.mean([summable((4,), "bfloat16", rank) for rank in present], axis=0, dtype="float64")
        for tensor in (first, second):
            assert np.allclose(tensor, expected, rtol=2.0**-7, atol=2.0**-9)
        assert np.array_equal(slices.indices, present)

    run(steps_of("ascending", world), step)


@SIZES
@MODES
@pytest.mark.parametrize("name", ["ascending", "descending"])
def test_allgather_gets_no_rows(world, name, wrap):
    gather = wrap(lambda x: (*tfdist.grouped_allgather([x, 2 * x], name="rows"), tfdist.allgather(x[0, 0], name="one")))
    mine = tf.constant(summable((tfdist.rank() + 1, 2), "int32", tfdist.rank()))

    def step(present):
        rows = np.concatenate([summable((rank + 1, 2), "int32", rank) for rank in present])
        once, twice, numbers = gather(mine)
        assert np.array_equal(once, rows)
        assert np.array_equal(twice, 2 * rows)
        assert np.array_equal(numbers, [summable((rank + 1, 2), "int32", rank)[0, 0] for rank in present])

    run(steps_of(name, world), step)


@SIZES
def test_adasum_takes_zeros(world):
    """Ranks that agree with each other: zeros change nothing."""
    x = tf.constant([3.0, -4.0])
    run(
        steps_of("descending", world),
        lambda present: np.testing.assert_array_equal(tfdist.allreduce(x, op=tfdist.Adasum, name="x"), x),
    )


@SIZES
def test_large_tensor(world):
    """What a rank that has joined takes part in travels in parts."""
    x = summable((50_001,), "int32", tfdist.rank())

    def step(present):
        expected = sum(summable((50_001,), "int32", rank) for rank in present)
        assert np.array_equal(tfdist.allreduce(x, op=tfdist.Sum, name="large"), expected)

    run(steps_of("ascending", world), step)


@SIZES
def test_gradient(world):
    """Gradients are collectives of their own; the sum goes over the ranks that are there."""
    x = tf.constant([1.0, 2.0])

    def step(present):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum((tfdist.rank() + 1.0) * tfdist.allreduce(x, op=tfdist.Sum, name="x"))
        assert np.array_equal(tape.gradient(y, x), [sum(rank + 1.0 for rank in present)] * 2)

    run(steps_of("descending", world), step)


@SIZES
def test_in_a_function(world):
    """A loop that ends at another step on every rank, all of it in one graph."""

    @tf.function
    def train(steps):
        total = tf.constant(0.0)
        for _ in tf.range(steps):
            total += tfdist.allreduce(tf.constant(1.0), op=tfdist.Sum, name="step")
        return total, tfdist.join()

    steps = steps_of("ascending", world)
    total, last = train(tf.constant(steps[tfdist.rank()]))
    assert float(total) == sum(min(count, steps[tfdist.rank()]) for count in steps)
    assert last.dtype == tf.int32
    assert int(last) == last_of(steps)


@SIZES
def test_state_of_the_last_one(world):
    """The use that join is made for: everybody takes on the state of who has seen every step."""
    variable = tf.Variable([0.0])
    steps = steps_of("descending", world)
    last = run(steps, lambda present: variable.assign_add(tfdist.allreduce([1.0], op=tfdist.Sum, name="step")))
    tfdist.broadcast_variables([variable], root_rank=last)
    assert float(variable[0]) == sum(steps)


REFUSED = {
    "allreduce 'x' (1 tensor, 'x') by min": lambda: tfdist.allreduce([1.0], op=tfdist.Min, name="x"),
    "allreduce 'x' (1 tensor, 'x') by max": lambda: tfdist.allreduce([1.0], op=tfdist.Max, name="x"),
    "allreduce 'x' (1 tensor, 'x') by product": lambda: tfdist.allreduce([1.0], op=tfdist.Product, name="x"),
    "broadcast 'x'": lambda: tfdist.broadcast([1.0], tfdist.rank(), name="x"),
    "broadcast 'weights'": lambda: tfdist.broadcast_variables([tf.Variable(1.0)], tfdist.rank(), name="weights"),
    "broadcast 'settings/bytes'": lambda: tfdist.broadcast_object(1, tfdist.rank(), name="settings"),
    "alltoall 'x'": lambda: tfdist.alltoall([1.0] * tfdist.size(), name="x"),
    "reducescatter 'x'": lambda: tfdist.reducescatter([1.0], name="x"),
}


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("title", REFUSED)
@pytest.mark.parametrize("source", ["first", "last"])
def test_what_zeros_would_falsify_is_refused_by_name(world, title, source):
    """One rank goes on after all others have joined; everybody gets the same error and is in step again."""
    active = 0 if source == "first" else world - 1
    with pytest.raises(MismatchError) as caught:
        REFUSED[title]() if tfdist.rank() == active else tfdist.join()
    # The path of a variable is said on the rank that has it.
    text = re.sub(r" \(here [^)]*\)", "", str(caught.value))
    texts = tfdist.allgather_object(text, name="texts")
    assert len(set(texts)) == 1
    assert texts[0].startswith(title)
    first, last = (1, world - 1) if active == 0 else (0, world - 2)
    assert f"rank{f's {first}-{last}' if world > 2 else f' {first}'} had joined" in texts[0]
    assert "only allreduce by sum, average or adasum, allgather and barrier may run" in texts[0]
    assert tfdist.join() == world - 1


@pytest.mark.ranks(2, 3)
def test_objects_of_a_rank_that_has_joined(world):
    """Nothing comes from it, so a list of objects is shorter."""
    if tfdist.rank() == 0:
        assert tfdist.join() == world - 1
    else:
        assert tfdist.allgather_object(tfdist.rank() * 2, name="objects") == [2 * rank for rank in range(1, world)]
        tfdist.join()


@pytest.mark.ranks(3, 4)
def test_ranks_that_differ_while_one_has_joined(world):
    """The difference is named, and who has joined is no part of it."""
    kernel = tf.zeros([tfdist.rank()])
    with pytest.raises(MismatchError) as caught:
        tfdist.allreduce(kernel, op=tfdist.Sum, name="kernel") if tfdist.rank() else tfdist.join()
    texts = tfdist.allgather_object(str(caught.value), name="texts")
    assert len(set(texts)) == 1
    assert "shape of tensor 'kernel' is [1] on rank 1, [2] on rank 2" in texts[0]
    assert "rank 0" not in texts[0]
