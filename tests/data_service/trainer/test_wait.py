"""The wait for data is what was waited for, and its share is of the time it was in."""

import time

import pytest
import tensorflow as tf

from tfdist.data_service import measure_wait, wait_for_data
from tfdist.data_service.trainer import wait, watch
from tfdist.data_service.trainer.wait import Waited
from tfdist.data_service.trainer.wait_meter import Sample

SLOW_SECONDS = 0.02


@pytest.fixture(autouse=True)
def nothing_watched(monkeypatch):
    """What other tests have read does not count here."""
    monkeypatch.setattr(watch, "_watches", [])


def slow(count):
    return sleeping(count, SLOW_SECONDS)


def sleeping(count, seconds):
    dataset = tf.data.Dataset.range(count)
    variant = tf.raw_ops.SleepDataset(
        input_dataset=tf.data.experimental.to_variant(dataset),
        sleep_microseconds=round(seconds * 1e6),
        output_types=[tf.int64],
        output_shapes=[[]],
    )
    return tf.data.experimental.from_variant(variant, dataset.element_spec)


def test_share_of_a_time():
    assert Waited(3, 1, 3).share(12) == 0.25
    assert Waited(3, 1, 3).share(2) == 1.0
    assert Waited(0, 0, 0).share(0) == 0.0
    assert Waited(5, 9, 2).since(Waited(3, 4, 1)) == Waited(2, 5, 2)


def test_nothing_was_read():
    assert wait_for_data() == Waited(0.0, 0, 0.0)


def test_time_in_the_data_counts_and_time_after_it_does_not():
    dataset = measure_wait(slow(5))
    assert dataset.element_spec == tf.TensorSpec([], tf.int64)
    start = time.perf_counter()
    for _ in dataset:
        pass
    wall = time.perf_counter() - start
    waited = wait_for_data()
    assert waited.elements == 5
    assert 5 * SLOW_SECONDS * 0.9 <= waited.seconds <= wall
    assert SLOW_SECONDS * 0.9 <= waited.longest_seconds <= waited.seconds
    list(slow(5).map(lambda x: x))  # not watched
    list(measure_wait(tf.data.Dataset.range(5)))
    assert wait_for_data().since(waited).seconds < 5 * SLOW_SECONDS
    assert wait_for_data().elements == 10


def test_no_thread_waits_in_place_of_the_trainer():
    """TensorFlow would put a `prefetch` behind it, and count elements that nobody has asked for."""
    elements = iter(measure_wait(tf.data.Dataset.range(100)))
    for _ in range(3):
        next(elements)
    assert wait_for_data().elements == 3


def test_what_enters_training_replaces_what_came_before():
    inner = watch.watch(slow(3), watch.Watch(watch.new_name("inner"), "host:1"))
    assert wait.wait_for_data().elements == 0
    list(inner)
    assert wait.wait_for_data().elements == 3
    outer = measure_wait(inner.batch(3))
    list(outer)
    assert wait.wait_for_data().elements == 1


def test_a_sample_tells_the_watches_of_a_service_apart():
    inner = watch.watch(slow(4), watch.Watch(watch.new_name("inner"), "host:1"))
    other = watch.watch(slow(2), watch.Watch(watch.new_name("other"), "host:2"))
    list(measure_wait(inner.batch(2).prefetch(1)))
    list(other)
    list(measure_wait(slow(3)))
    found = wait.sample("host:1", 7.5)
    assert found.time_s == 7.5
    assert [count.elements for count in found.at_input.values()] == [2]
    assert [count.elements for count in found.at_service.values()] == [4]
    assert all(count.seconds >= 2 * SLOW_SECONDS * 0.9 for count in found.at_service.values())
    assert wait.sample("host:3", 0.0) == Sample(0.0, {}, {})


def test_a_wait_counts_while_it_goes_on(wait_until):
    """The elements are a day away; the reader is cancelled with its iterator."""
    options = tf.data.Options()
    options.experimental_warm_start = True  # a thread of its own begins to wait at once
    never = sleeping(1, 86400.0).prefetch(1)
    measured = watch.watch(never, watch.Watch(watch.new_name("never"), "host:9")).prefetch(1).with_options(options)
    elements = iter(measured)
    wait_until(lambda: wait_for_data().seconds > SLOW_SECONDS, seconds=10, what="the wait to be counted")
    assert wait_for_data().elements == 0
    del elements
