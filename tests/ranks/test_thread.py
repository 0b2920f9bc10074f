"""Collectives from threads other than the main one: right, or an error on every rank that names the threads."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import tensorflow as tf

import tfdist
from tfdist.errors import MismatchError
from tfdist.ops.graph import call
from tfdist.training.gradients import GradientReduction
from tfdist.world import process_sets

LIMIT_S = 60


def total(value, **where):
    """A sum without a name, of a value that all ranks give; per rank."""
    return float(tfdist.allreduce(tf.fill([5], float(value)), op=tfdist.Sum, **where)[0])


def call_in_order(first_is_a, call):
    """Two threads run `call` with 1 and 100, one after the other; what each returned or raised, as text."""
    turns, found = [threading.Event(), threading.Event()], {}

    def work(number, value):
        assert turns[number].wait(LIMIT_S)
        try:
            found[value] = call(value)
        except MismatchError as error:
            found[value] = str(error)
        turns[1 - number].set()

    # Names that Python makes differ where an earlier test has started more threads on one rank.
    values = {"first": 1, "second": 100}
    threads = [
        threading.Thread(target=work, args=(number, value), name=name)
        for number, (name, value) in enumerate(values.items())
    ]
    for thread in threads:
        thread.start()
    turns[0 if first_is_a else 1].set()
    for thread in threads:
        thread.join(LIMIT_S)
    return found, list(values)


def test_two_threads_in_another_order_by_rank(world):
    """They ask for the same, so each would get the other one's sum."""
    found, names = call_in_order(tfdist.rank() == 0, total)
    for text in found.values():
        assert isinstance(text, str), found
        assert "call all collectives from one thread" in text
        assert all(f"in thread '{name}'" in text for name in names), text
    assert len(found) == 2


def test_reductions_that_two_threads_have_started(world, monkeypatch):
    """A thread of TensorFlow does the work."""
    monkeypatch.setattr(call, "overlaps", lambda: True)

    def reduce(value):
        variable = tf.Variable(tf.zeros([5]), name="v")
        (mean,) = GradientReduction().reduce([tf.fill([5], float(value))], [variable], "gradients")
        return float(mean[0])

    assert call_in_order(True, reduce)[0] == {1: 1.0, 100: 100.0}
    found, names = call_in_order(tfdist.rank() == 0, reduce)
    for text in found.values():
        assert isinstance(text, str), found
        assert all(f"in thread '{name}'" in text for name in names), text
    assert len(found) == 2


def test_two_threads_in_one_order(world):
    assert call_in_order(True, total)[0] == {1: world, 100: 100 * world}


def test_main_thread_and_another(world):
    found = []

    def work():
        try:
            found.append(total(1))
        except MismatchError as error:
            found.append(str(error))

    thread = threading.Thread(target=work, name="metrics")
    if tfdist.rank() == 0:
        thread.start()
        thread.join(LIMIT_S)
    else:
        with pytest.raises(MismatchError, match="in thread 'metrics'"):
            total(2)
    assert tfdist.rank() > 0 or "in thread 'metrics', rank" in found[0], found
    assert total(3) == 3 * world


def test_numbers_of_threads_that_differ_by_rank(world):
    for _ in range(tfdist.rank()):
        threading.Thread(target=int).start()
    for value in (1, 2):  # one after the other, as one for each epoch
        found = []
        thread = threading.Thread(target=lambda value, found: found.append(total(value)), args=(value, found))
        thread.start()
        thread.join(LIMIT_S)
        assert found == [value * world]


def test_pool_that_runs_one_call_at_a_time(world):
    """Which of its threads runs it differs by rank."""
    with ThreadPoolExecutor(4) as pool:
        done = threading.Event()
        blocked = [pool.submit(done.wait, LIMIT_S) for _ in range(tfdist.rank())]
        assert [pool.submit(total, value).result(LIMIT_S) for value in (1, 2, 3)] == [world, 2 * world, 3 * world]
        done.set()
        assert all(future.result(LIMIT_S) for future in blocked)


def test_py_function_on_a_thread_of_tensorflow(world):
    data = tf.data.Dataset.range(1, 4).map(lambda n: tf.py_function(total, [n], tf.float32), num_parallel_calls=1)
    assert [float(value) for value in data] == [world, 2 * world, 3 * world]


@pytest.mark.ranks(2, 3)
def test_threads_with_process_sets_of_their_own(world):
    process_sets.start("dynamic", None)
    sets = {1: tfdist.add_process_set(tfdist.ProcessSet([0, 1])), 100: tfdist.add_process_set(list(range(world))[1:])}
    mine = {value: one for value, one in sets.items() if one.included()}
    try:
        # In another order by rank, and with another number of threads.
        found = call_in_order(
            tfdist.rank() == 0, lambda value: total(value, process_set=mine[value]) if value in mine else None
        )[0]
    finally:
        for one in sets.values():
            tfdist.remove_process_set(one)
        process_sets.start(None, None)
    expected = {1: 2.0, 100: 100.0 * (world - 1)}
    assert found == {value: expected[value] if value in mine else None for value in sets}
