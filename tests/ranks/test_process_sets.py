"""Process sets: every collective among every subset of the ranks, while the others do something else."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.errors import ConfigError, MismatchError
from tfdist.testing import summable
from tfdist.world import process_sets

MODES = pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
SIZES = pytest.mark.ranks(1, 2, 3, 4)


@pytest.fixture(autouse=True)
def dynamic():
    """As after `init(process_sets="dynamic")`; leaves no set behind."""
    process_sets.start("dynamic", None)
    yield
    for number in sorted(tfdist.get_process_set_ids_and_ranks())[1:]:
        tfdist.remove_process_set(process_sets.of_number(number))
    process_sets.start(None, None)


def subsets(world):
    return [ranks for count in range(1, world + 1) for ranks in itertools.combinations(range(world), count)]


def input_of(rank):
    return summable((7, 2), "float32", rank)


def expected_of(ranks):
    """What each collective of `all_collectives` gives on this rank, which is one of `ranks`."""
    inputs = [input_of(rank) for rank in ranks]
    total, place = sum(inputs), ranks.index(tfdist.rank())
    rows = [input_of(rank)[: rank + 1] for rank in ranks]
    return {
        "sum": total,
        "average": total / np.float32(len(ranks)),
        "max": np.max(inputs, axis=0),
        "weighted": inputs[-1],
        "rows": np.concatenate(rows),
        **{f"from {root}": input_of(root) for root in ranks},
        "exchanged": np.concatenate([part[place : place + 1] for part in inputs]),
        "sent": np.full((sum(ranks) + len(ranks), 1), float(tfdist.rank())),
        "counts": np.array(ranks) + 1,
        "scattered": np.array_split(total, len(ranks))[place],
        "orthogonal": np.isin(np.arange(8), ranks).astype("float32"),
        "slices": np.concatenate(rows),
        "size": len(ranks),
    }


def all_collectives(ranks, where):
    mine, rank, n = tf.constant(input_of(tfdist.rank())), tfdist.rank(), len(ranks)
    slices = tf.IndexedSlices(mine[: rank + 1], tf.range(rank + 1), tf.constant([7, 2]))
    sent, counts = tfdist.alltoall(
        tf.repeat(tf.constant([[float(target)] for target in ranks]), rank + 1, axis=0),
        [rank + 1] * n,
        name="sent",
        process_set=where,
    )
    tfdist.barrier(process_set=where, name="barrier")
    return {
        "sum": tfdist.allreduce(mine, op=tfdist.Sum, name="sum", process_set=where),
        "average": tfdist.allreduce(mine, name="average", process_set=where),
        "max": tfdist.allreduce(mine, op=tfdist.Max, name="max", process_set=where),
        "weighted": tfdist.grouped_allreduce([mine], weight=int(rank == ranks[-1]), name="w", process_set=where)[0],
        "rows": tfdist.allgather(mine[: rank + 1], name="rows", process_set=where),
        **{f"from {root}": tfdist.broadcast(mine, root, name="x", process_set=where) for root in ranks},
        "exchanged": tfdist.alltoall(mine[:n], name="exchanged", process_set=where),
        "sent": sent,
        "counts": counts,
        "scattered": tfdist.reducescatter(mine, op=tfdist.Sum, name="scattered", process_set=where),
        "orthogonal": tfdist.allreduce(tf.one_hot(rank, 8), op=tfdist.Adasum, name="orthogonal", process_set=where),
        "slices": tfdist.allreduce(slices, op=tfdist.Sum, name="slices", process_set=where).values,
        "size": tfdist.size_op(where.process_set_id),
    }


@SIZES
@MODES
def test_every_subset(world, wrap):
    """Root ranks are numbers among all ranks."""
    for ranks in subsets(world):
        where = tfdist.add_process_set(ranks)
        assert where.included() == (tfdist.rank() in ranks)
        if where.included():
            received = wrap(lambda ranks=ranks, where=where: all_collectives(ranks, where))()
            for name, expected in expected_of(ranks).items():
                assert np.array_equal(received[name], expected), f"{name} among {ranks}"


@SIZES
def test_variables_and_objects(world):
    for ranks in subsets(world):
        where = tfdist.add_process_set(ranks)
        if not where.included():
            continue
        variable = tf.Variable([float(tfdist.rank())])
        tfdist.broadcast_variables([variable], root_rank=ranks[-1], process_set=where)
        assert float(variable[0]) == ranks[-1]
        assert tfdist.allgather_object(tfdist.rank(), process_set=where) == list(ranks)
        assert tfdist.broadcast_object(tfdist.rank() * 10, ranks[0], process_set=where) == ranks[0] * 10
        assert tfdist.broadcast_object_fn(ranks[-1], process_set=where)(tfdist.rank()) == ranks[-1]


@pytest.mark.ranks(2, 3, 4)
def test_sets_are_independent(world):
    """Each of two takes its own number of steps, and then all ranks meet."""
    halves = [tfdist.add_process_set(range(start, world, 2)) for start in (0, 1)]
    (mine,) = [half for half in halves if half.included()]
    for step in range(3 + 20 * mine.ranks[0]):
        total = tfdist.allreduce(float(tfdist.rank() + step), op=tfdist.Sum, name="step", process_set=mine)
        assert float(total) == sum(mine.ranks) + step * len(mine.ranks)
    assert float(tfdist.allreduce(1.0, op=tfdist.Sum, name="all")) == world


@pytest.mark.ranks(3, 4)
def test_sets_overlap(world):
    """Rank 0 is in all pairs with another one and serves them in turn; messages do not get mixed up."""
    pairs = [tfdist.add_process_set([0, other]) for other in range(1, world)]
    for round_ in range(3):
        for pair in pairs:
            if pair.included():
                total = tfdist.allreduce(
                    tf.constant(2.0 ** tfdist.rank() + round_), op=tfdist.Sum, name="x", process_set=pair
                )
                assert float(total) == 1 + 2.0 ** pair.ranks[1] + 2 * round_
        assert float(tfdist.allreduce(1.0, op=tfdist.Sum, name="all")) == world


@pytest.mark.ranks(2, 3, 4)
def test_a_set_inside_one_function(world):
    """Collectives of the set and of all ranks in one graph keep their order; the others skip those of the set."""
    where = tfdist.add_process_set([0, 1])

    @tf.function
    def step(x):
        first = tfdist.allreduce(x, op=tfdist.Sum, name="first")
        inner = tfdist.allreduce(first, op=tfdist.Sum, name="inner", process_set=where) if where.included() else first
        return tfdist.allreduce(inner, op=tfdist.Sum, name="last")

    total = world * (world + 1) / 2
    assert float(step(tf.constant(tfdist.rank() + 1.0))) == total * (world - 2) + 2 * total * 2


@SIZES
def test_properties(world):
    """Ranks are ascending, in whatever order they were given; the place counts in them."""
    ranks = list(range(world))[::2]
    where = tfdist.add_process_set(tfdist.ProcessSet(reversed(ranks)))
    assert where.ranks == ranks
    assert where.size() == len(ranks)
    assert where.included() == (tfdist.rank() in ranks)
    assert tfdist.get_process_set_ids_and_ranks() == {0: list(range(world)), where.process_set_id: ranks}
    assert int(tfdist.process_set_included_op(where.process_set_id)) == int(where.included())
    if where.included():
        assert where.rank() == ranks.index(tfdist.rank())
        assert int(tfdist.size_op(where.process_set_id)) == len(ranks)
    else:
        with pytest.raises(tfdist.errors.ConfigError, match=f"rank {tfdist.rank()} is not in .*Check included"):
            where.rank()


@SIZES
def test_the_set_of_all_ranks(world):
    everybody = tfdist.global_process_set
    assert everybody.process_set_id == 0
    assert everybody.ranks == list(range(world))
    assert everybody.included()
    assert (everybody.rank(), everybody.size()) == (tfdist.rank(), world)
    assert repr(everybody) == "ProcessSet(all ranks)"


@SIZES
def test_removed_and_added_again(world):
    """A removed set leaves the name to another one, which gets another number."""
    where = tfdist.ProcessSet([world - 1])
    numbers = []
    for _ in range(3):
        assert tfdist.add_process_set(where) is where
        numbers.append(where.process_set_id)
        assert repr(where) == f"ProcessSet([{world - 1}], process_set_id={numbers[-1]})"
        assert tfdist.remove_process_set(where) is True
        assert tfdist.remove_process_set(where) is False
        assert where.process_set_id is None
    assert len(set(numbers)) == 3
    assert tfdist.get_process_set_ids_and_ranks() == {0: list(range(world))}
    with pytest.raises(tfdist.errors.NotInitializedError, match="not in use"):
        tfdist.barrier(process_set=where)


@SIZES
def test_many_sets(world):
    """More than a program needs: making one costs little, and numbers do not run out."""
    for _ in range(100):
        where = tfdist.add_process_set([0, world - 1] if world > 1 else [0])
        if where.included():
            tfdist.barrier(process_set=where)
        tfdist.remove_process_set(where)


def same_on_every_rank(error, call):
    """The text of an error that every rank must get alike; after it the ranks are in step."""
    with pytest.raises(error) as caught:
        call()
    texts = tfdist.allgather_object(str(caught.value), name="texts")
    assert len(set(texts)) == 1, texts
    return texts[0]


@pytest.mark.ranks(2, 3, 4)
def test_different_ranks(world):
    last = tfdist.rank() == world - 1
    text = same_on_every_rank(MismatchError, lambda: tfdist.add_process_set([0, world - 1] if last else [0]))
    assert "add_process_set 'rank 0'" in text
    assert f"rank {world - 1} called add_process_set 'rank" in text
    assert tfdist.get_process_set_ids_and_ranks() == {0: list(range(world))}


@pytest.mark.ranks(2, 3, 4)
def test_a_set_is_added_while_another_rank_does_something_else(world):
    def call():
        if tfdist.rank() == 0:
            tfdist.add_process_set([0])
        else:
            tfdist.barrier(name="elsewhere")

    text = same_on_every_rank(MismatchError, call)
    assert "add_process_set 'rank 0'" in text
    assert "barrier 'elsewhere'" in text


@SIZES
def test_the_same_ranks_twice(world):
    first = tfdist.add_process_set(range(world))
    text = same_on_every_rank(ConfigError, lambda: tfdist.add_process_set(range(world)))
    assert f"already exists, as number {first.process_set_id}. Use that one, or remove it first." in text
    with pytest.raises(ConfigError, match="is already in use"):
        tfdist.add_process_set(first)


@SIZES
def test_rank_that_does_not_exist(world):
    text = same_on_every_rank(ConfigError, lambda: tfdist.add_process_set([0, world]))
    assert f"received the ranks [0, {world}]; expected one or more distinct ranks of 0 to {world - 1}" in text


@pytest.mark.ranks(2, 3, 4)
def test_removal_of_different_sets(world):
    sets = [tfdist.add_process_set([rank]) for rank in (0, 1)]
    text = same_on_every_rank(MismatchError, lambda: tfdist.remove_process_set(sets[tfdist.rank() == 0]))
    assert "remove_process_set" in text
    assert all(part.process_set_id is not None for part in sets)


@SIZES
def test_what_cannot_be_removed(world):
    with pytest.raises(ConfigError, match="the set of all ranks cannot be removed"):
        tfdist.remove_process_set(tfdist.global_process_set)
    with pytest.raises(ConfigError, match=r"remove_process_set expects a tfdist.ProcessSet; received \[0\]"):
        tfdist.remove_process_set([0])


MEMBERS_ONLY = {
    "allreduce": lambda where: tfdist.allreduce([1.0], process_set=where),
    "allgather": lambda where: tfdist.allgather([1.0], process_set=where),
    "broadcast": lambda where: tfdist.broadcast([1.0], 0, process_set=where),
    "broadcast_variables": lambda where: tfdist.broadcast_variables([tf.Variable(0.0)], 0, process_set=where),
    "alltoall": lambda where: tfdist.alltoall([1.0], process_set=where),
    "reducescatter": lambda where: tfdist.reducescatter([1.0], process_set=where),
    "barrier": lambda where: tfdist.barrier(process_set=where),
}


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("name", MEMBERS_ONLY)
def test_call_of_a_rank_outside(world, name):
    """It gets an error at once, the member is not disturbed, and then all are in step."""
    where = tfdist.add_process_set([0])
    if tfdist.rank() == 0:
        MEMBERS_ONLY[name](where)
    else:
        number = where.process_set_id
        with pytest.raises(ConfigError) as caught:
            MEMBERS_ONLY[name](where)
        text = str(caught.value)
        assert text.startswith(f"rank {tfdist.rank()} (host ")
        assert f"ran a collective in process set {number} (rank 0), to which it does not belong" in text
        assert "process_set.included()" in text
    assert float(tfdist.allreduce(1.0, op=tfdist.Sum, name="after")) == world


@pytest.mark.ranks(3, 4)
def test_root_outside_the_set(world):
    where = tfdist.add_process_set([0, 2])
    if where.included():
        for call in (
            lambda: tfdist.broadcast([1.0], 1, name="x", process_set=where),
            lambda: tfdist.broadcast_variables([tf.Variable(1.0)], 1, name="x", process_set=where),
        ):
            with pytest.raises(ConfigError) as caught:
                call()
            text = str(caught.value)
            assert "broadcast 'x' received root 1; expected one of ranks 0, 2." in text
            assert text.endswith(f"This was in process set {where.process_set_id} (ranks 0, 2).")
        with pytest.raises(ConfigError, match="received root 1"):
            tfdist.broadcast_object("x", 1, process_set=where)


@pytest.mark.ranks(3, 4)
def test_members_that_differ(world):
    """Ranks are named by their numbers among all, and the others notice nothing."""
    where = tfdist.add_process_set([1, 2])
    if where.included():
        with pytest.raises(MismatchError) as caught:
            tfdist.allreduce(tf.zeros([tfdist.rank()]), name="kernel", process_set=where)
        texts = tfdist.allgather_object(str(caught.value), name="texts", process_set=where)
        assert len(set(texts)) == 1
        assert "shape of tensor 'kernel' is [1] on rank 1, [2] on rank 2" in texts[0]
        assert f"in process set {where.process_set_id} (ranks 1-2)" in texts[0]
    assert float(tfdist.allreduce(1.0, op=tfdist.Sum, name="after")) == world


@SIZES
def test_function_that_outlives_its_set(world):
    """A graph knows the set by a number, which is not given to another one."""
    where = tfdist.add_process_set([0])
    step = tf.function(lambda x: tfdist.allreduce(x, op=tfdist.Sum, process_set=where))
    if where.included():
        assert float(step(tf.constant(2.0))) == 2.0
    number = where.process_set_id
    tfdist.remove_process_set(where)
    other = tfdist.add_process_set([0])
    assert other.process_set_id != number
    if other.included():
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=f"there is no process set {number}, or it was removed"
        ):
            step(tf.constant(2.0))


@pytest.mark.ranks(2, 3)
def test_while_a_rank_has_joined(world):
    """Sets are made by all ranks."""
    where = tfdist.add_process_set([0])
    for change in (lambda: tfdist.add_process_set([1]), lambda: tfdist.remove_process_set(where)):
        text = same_on_every_rank(MismatchError, lambda c=change: c() if tfdist.rank() == 0 else tfdist.join())
        assert "process_set" in text
        assert "had joined" in text
