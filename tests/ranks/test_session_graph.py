"""Collectives in graphs that a session runs: results, gradients, and what the ranks fetch in whatever order."""

import threading

import numpy as np
import pytest
import tensorflow as tf

import tfdist
import tfdist.tensorflow as hvd
from tfdist.errors import ConfigError
from tfdist.ops.graph import session_graph
from tfdist.world import process_sets

SIZES = pytest.mark.ranks(1, 2, 3, 4)
ONE_THREAD = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=1, use_per_session_threads=True)
# Of its own: other sessions have the threads that the first one of the process has asked for.
TWO_THREADS = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=2, use_per_session_threads=True)
FAILED = tf.errors.FailedPreconditionError


def rows(world):
    """What each rank has."""
    return [np.arange(6, dtype="float32") + 10 * rank for rank in range(world)]


def mine():
    return tf.constant(rows(tfdist.size())[tfdist.rank()])


def part(values, world):
    return np.array_split(values, world)[tfdist.rank()]


# Name -> the collective, and its result among the ranks.
CALLS = {
    "sum": (lambda x: hvd.allreduce(x, op=hvd.Sum, name="x"), lambda world: sum(rows(world))),
    "fp16": (lambda x: hvd.allreduce(x, compression=hvd.Compression.fp16, op=hvd.Sum), lambda world: sum(rows(world))),
    "average": (lambda x: hvd.allreduce(x, name="x"), lambda world: sum(rows(world)) / world),
    "grouped": (
        lambda x: hvd.grouped_allreduce([x, x * 2], op=hvd.Max, name="x")[1],
        lambda world: np.max(rows(world), axis=0) * 2,
    ),
    "slices": (
        lambda x: hvd.allreduce(tf.IndexedSlices(x, tf.range(6), tf.constant([6])), op=hvd.Sum).values,
        lambda world: np.concatenate(rows(world)),
    ),
    "allgather": (
        lambda x: hvd.allgather(x[: tfdist.rank() + 1], name="x"),
        lambda world: np.concatenate([row[: rank + 1] for rank, row in enumerate(rows(world))]),
    ),
    "broadcast": (lambda x: hvd.broadcast(x, tfdist.size() - 1, name="x"), lambda world: rows(world)[-1]),
    "alltoall": (
        lambda x: hvd.alltoall(x[: tfdist.size()], name="x"),
        lambda world: np.array([row[tfdist.rank()] for row in rows(world)]),
    ),
    "reducescatter": (
        lambda x: hvd.reducescatter(x, op=hvd.Sum, name="x"),
        lambda world: part(sum(rows(world)), world),
    ),
    "rank and size": (lambda x: hvd.rank_op() * 10 + hvd.size_op(), lambda world: tfdist.rank() * 10 + world),
}


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def calls_so_far():
    """How many collectives have run, by operation."""
    return {name: figures["calls"] for name, figures in tfdist.metrics()["collectives"].items()}


def through(function, value):
    """The value, after a function of Python has run."""

    def pass_on(array):
        function()
        return array

    return tf.ensure_shape(tf.numpy_function(pass_on, [value], value.dtype), value.shape)


@SIZES
@pytest.mark.parametrize("name", CALLS)
def test_every_collective(world, name):
    call, expected = CALLS[name]
    fetched = call(mine())
    with tf.compat.v1.Session() as session:
        for _ in range(2):
            assert np.array_equal(session.run(fetched), expected(world))


GRADIENTS = {
    "allreduce": lambda x: hvd.allreduce(x, op=hvd.Sum, name="x"),
    "average": lambda x: hvd.allreduce(x, name="x"),
    "min": lambda x: hvd.allreduce(x, op=hvd.Min, name="x"),
    "allgather": lambda x: hvd.allgather(x[: tfdist.rank() + 1], name="x"),
    "broadcast": lambda x: hvd.broadcast(x, 0, name="x"),
    "alltoall": lambda x: hvd.alltoall(x[: tfdist.size()], name="x"),
    "reducescatter": lambda x: hvd.reducescatter(x, op=hvd.Sum, name="x"),
    "sparse": lambda x: hvd.allreduce(tf.IndexedSlices(x, tf.range(6), tf.constant([6])), name="x").values,
}


@SIZES
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_are_those_of_eager_execution(world, name):
    values = np.random.default_rng(tfdist.rank()).normal(size=6)
    x = tf.constant(values)
    y = GRADIENTS[name](x)
    gradient = tf.convert_to_tensor(tf.gradients(y * y, x)[0])
    with tf.compat.v1.Session() as session:
        fetched = session.run(gradient)
    with session_graph.left(), tf.GradientTape(persistent=True) as tape:
        x = tf.constant(values)
        tape.watch(x)
        y = GRADIENTS[name](x)
        assert np.array_equal(fetched, tf.convert_to_tensor(tape.gradient(y * y, x)))


@SIZES
def test_fetching_the_last_runs_none_of_those_before(world):
    x = mine()
    earlier = [hvd.allreduce(x, name="a"), hvd.allgather(x, name="b")]
    last = hvd.allreduce(x, op=hvd.Max, name="c")
    with tf.compat.v1.Session() as session:
        session.run(last)
        before = calls_so_far()
        session.run(last)
        after = calls_so_far()
        session.run(earlier)
    assert after["allreduce"] - before["allreduce"] == 1
    assert after["allgather"] - before["allgather"] == 1  # by which the ranks tell each other what they wait for


@SIZES
def test_each_rank_fetches_in_an_order_of_its_own(world):
    """With one thread to run kernels: a rank that waited in one collective could not begin another."""
    x = mine()
    sums = [hvd.allreduce(x * place, op=hvd.Sum, name="sum") for place in range(1, 6)]
    order = np.random.default_rng(tfdist.rank()).permutation(5)
    with tf.compat.v1.Session(config=ONE_THREAD) as session:
        for _ in range(10):
            fetched = session.run([sums[place] for place in order])
            for place, value in zip(order, fetched, strict=True):
                assert np.array_equal(value, sum(rows(world)) * (place + 1))


@pytest.mark.ranks(2, 3)
def test_inputs_that_come_in_another_order_on_each_rank(world):
    other_has_come, waited = threading.Event(), []
    late = through(lambda: waited.append(other_has_come.wait(60)), mine())
    early = through(other_has_come.set, mine())
    first, second = (late, early) if tfdist.rank() == 0 else (early, late)
    fetched = [hvd.allreduce(first, op=hvd.Sum, name="a"), hvd.allreduce(second * 2, op=hvd.Sum, name="b")]
    with tf.compat.v1.Session(config=TWO_THREADS) as session:
        a, b = session.run(fetched)
    assert waited == [True]
    assert np.array_equal(a, sum(rows(world)))
    assert np.array_equal(b, 2 * sum(rows(world)))


@pytest.mark.ranks(2, 3)
def test_one_collective_after_another(world):
    """The second needs the first, and the ranks know neither's moment."""
    total = hvd.allreduce(mine(), op=hvd.Sum, name="sum")
    shares = hvd.allreduce(mine() / (total + 1), op=hvd.Sum, name="shares")
    with tf.compat.v1.Session() as session:
        whole = sum(rows(world))
        np.testing.assert_allclose(session.run(shares), whole / (whole + 1), rtol=1e-6)


@pytest.mark.ranks(2, 3)
def test_what_only_a_process_set_has_does_not_count(world):
    """Ranks outside of it know neither its graphs nor its collectives in a graph of all."""
    with session_graph.left():
        process_sets.start("dynamic", None)
        of_first = tfdist.add_process_set([0])
    for has_all in (False, True):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            if of_first.included():
                own = [hvd.allreduce(mine(), op=hvd.Sum, name="x", process_set=of_first) for _ in range(2)]
                assert np.array_equal(session.run(own)[1], rows(world)[0])
            if has_all:
                assert np.array_equal(session.run(hvd.allreduce(mine(), op=hvd.Sum, name="x")), sum(rows(world)))
    with session_graph.left():
        tfdist.remove_process_set(of_first)
        process_sets.start(None, None)


@pytest.mark.ranks(2)
def test_two_graphs_by_turns_and_at_once(world):
    graphs = [tf.Graph(), tf.Graph()]
    sessions, fetches = [], []
    for factor, graph in enumerate(graphs, 1):
        with graph.as_default():
            fetches.append(hvd.allreduce(mine() * factor, op=hvd.Sum, name="same name"))
            sessions.append(tf.compat.v1.Session(graph=graph))
    results = {}

    def work(place):
        for _ in range(20):
            results.setdefault(place, []).append(sessions[place].run(fetches[place]))

    for place in (0, 1):
        work(place)
    order = (0, 1) if tfdist.rank() == 0 else (1, 0)
    threads = [threading.Thread(target=work, args=(place,)) for place in order]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    for place in (0, 1):
        assert len(results[place]) == 40
        assert all(np.array_equal(value, sum(rows(world)) * (place + 1)) for value in results[place])
    for session in sessions:
        session.close()


@pytest.mark.ranks(2)
def test_threads_make_their_graphs_in_any_order(world):
    """As long as each makes its own in one order. On each rank another thread comes first."""
    results, first_has_begun = {1: [], 2: []}, threading.Event()

    def work(factor):
        for _ in range(2):
            with tf.Graph().as_default() as graph, tf.compat.v1.Session(graph=graph) as session:
                if factor != tfdist.rank() + 1:
                    assert first_has_begun.wait(60)
                fetched = hvd.allreduce(mine() * factor, op=hvd.Sum, name="same name")
                first_has_begun.set()
                results[factor].append(session.run(fetched))

    threads = [threading.Thread(target=work, args=(factor,), name=f"of {factor}") for factor in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    for factor, values in results.items():
        assert len(values) == 2
        assert all(np.array_equal(value, sum(rows(world)) * factor) for value in values)


@pytest.mark.ranks(2)
def test_the_same_graph_twice_at_once_is_refused(world, wait_until):
    """Whose sum is whose, nobody could tell."""
    slow = hvd.allreduce(mine(), op=hvd.Sum, name="x")
    go = hvd.allreduce(mine(), op=hvd.Sum, name="go")
    with tf.compat.v1.Session() as session:
        if tfdist.rank() == 1:
            session.run(go)
            session.run(slow)
            return
        found = []

        def run():
            try:
                found.append(session.run(slow))
            except tf.errors.InvalidArgumentError as error:
                found.append(error)

        threads = [threading.Thread(target=run) for _ in range(2)]
        for thread in threads:
            thread.start()
        wait_until(lambda: found, seconds=60)  # the one that came second does not wait
        assert "'x' (collective 1 of graph" in str(found[0])
        assert "already under way" in str(found[0])
        session.run(go)
        for thread in threads:
            thread.join(timeout=60)
        assert np.array_equal(found[1], sum(rows(world)))


@pytest.mark.ranks(2)
def test_what_differs_by_rank_is_an_error_on_all(world):
    x = tf.zeros((2 + tfdist.rank(),))
    fetched = hvd.allreduce(x, name="x")
    right = hvd.allreduce(mine(), op=hvd.Sum, name="y")
    with tf.compat.v1.Session() as session:
        with pytest.raises(FAILED, match=r"\[2\] on rank 0, \[3\] on rank 1"):
            session.run(fetched)
        assert np.array_equal(session.run(right), sum(rows(world)))


@pytest.mark.ranks(2)
def test_a_rank_that_is_elsewhere_is_an_error_on_all(world):
    fetched = hvd.allreduce(mine(), name="x")
    with tf.compat.v1.Session() as session:
        if tfdist.rank() == 0:
            with pytest.raises(FAILED, match=r"collectives that are waited for.*rank 1 called barrier 'end'"):
                session.run(fetched)
        else:
            with session_graph.left(), pytest.raises(FAILED, match="rank 1 called barrier 'end'"):
                tfdist.barrier(name="end")
    with tf.compat.v1.Session() as session:
        session.run(fetched)


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("taken", [True, False])
def test_in_a_branch(world, taken):
    x = mine()
    fetched = tf.cond(tf.constant(taken), lambda: hvd.allreduce(x, op=hvd.Sum, name="x"), lambda: x)
    with tf.compat.v1.Session() as session:
        value = session.run(fetched)
    assert np.array_equal(value, sum(rows(world)) if taken else rows(world)[tfdist.rank()])


@pytest.mark.ranks(1)
@pytest.mark.parametrize(
    "build",
    [
        tf.function(lambda x: hvd.allreduce(x, name="x")),
        lambda x: tf.while_loop(lambda y: tf.reduce_sum(y) < 9, lambda y: (hvd.allreduce(y, name="x"),), [x]),
        lambda x: tf.map_fn(lambda y: hvd.allreduce(y, name="x"), x),
    ],
    ids=["function", "loop", "map"],
)
def test_where_it_might_run_several_times_it_is_refused(world, build):
    with pytest.raises(ConfigError, match=r"'x' is in a tf.function or a loop of a graph that a session runs"):
        build(mine())


@pytest.mark.ranks(1)
def test_join_is_refused(world):
    with pytest.raises(ConfigError, match="join cannot be part of a graph with sessions"):
        hvd.join()


@pytest.fixture
def sets():
    """The ranks by turns: the even ones, and the odd ones."""
    process_sets.start("dynamic", None)
    made = [tfdist.add_process_set(list(range(first, tfdist.size(), 2))) for first in (0, 1)]
    yield made
    for where in made:
        tfdist.remove_process_set(where)
    process_sets.start(None, None)


@pytest.mark.ranks(3, 4)
def test_process_sets_at_once(world, sets):
    own = sets[tfdist.rank() % 2]
    among = hvd.allreduce(mine(), op=hvd.Sum, name="own", process_set=own)
    whole = hvd.allreduce(mine(), op=hvd.Sum, name="whole")
    with tf.compat.v1.Session() as session:
        for _ in range(5):
            fetched = session.run({"own": among, "whole": whole})
        for _ in range(3 * (tfdist.rank() % 2)):  # the even ranks are done with their set before the odd ones
            session.run(among)
    assert np.array_equal(fetched["own"], sum(rows(world)[tfdist.rank() % 2 :: 2]))
    assert np.array_equal(fetched["whole"], sum(rows(world)))


@pytest.mark.ranks(2)
@pytest.mark.parametrize("session", [None, tf.compat.v1.Session(graph=tf.Graph())], ids=["none", "session"])
def test_objects(world, session):
    assert hvd.broadcast_object({"from": tfdist.rank()}, 1, session=session) == {"from": 1}
    assert hvd.broadcast_object_fn(1, session=session)(tfdist.rank()) == 1
    assert hvd.allgather_object(tfdist.rank(), session=session) == [0, 1]
