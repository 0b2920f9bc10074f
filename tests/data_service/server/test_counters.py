"""What a worker tells of the work of its process, while it works for trainers that fetch and for one that does not."""

import time
from types import SimpleNamespace

import pytest
import tensorflow as tf

from tfdist import data_service
from tfdist.data_service.server import counters
from tfdist.data_service.server.counters import ServingMeter, TaskMeter
from tfdist.data_service.server.metrics import HELP

FLOATS = 50


def test_a_task_meter_tells_tasks():
    meter = TaskMeter(lambda: 3)
    meter.tick()
    meter.drain()
    assert meter.counters() == {"tasks": 3}


def test_every_counter_is_explained():
    assert set(ServingMeter(lambda: 0).counters()) <= set(HELP)


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves."""
    now = [1000.0]
    monkeypatch.setattr(counters, "time", SimpleNamespace(monotonic=lambda: now[0], process_time=time.process_time))
    return now


def test_rates_are_of_the_window(clock, service):
    meter = ServingMeter(lambda: 0)
    meter.tick()
    before = meter.counters()
    assert before["elements_per_second"] == before["bytes_per_second"] == 0
    dataset = tf.data.Dataset.range(40).map(lambda number: tf.zeros([FLOATS]) + tf.cast(number, tf.float32))
    assert len(list(data_service.distribute(dataset, service))) == 40
    meter.tick()  # too soon for another sample
    assert meter.counters()["elements_per_second"] == 0
    clock[0] += 4.0
    meter.tick()
    after = meter.counters()
    assert after["elements_total"] - before["elements_total"] == 40
    assert after["elements_per_second"] == 10.0
    assert after["bytes_per_second"] == 10.0 * 4 * FLOATS
    assert (
        0 < after["cpu_cores"] == pytest.approx((after["cpu_seconds_total"] - before["cpu_seconds_total"]) / 4, rel=0.5)
    )
    assert after["cores"] >= 1


def full_queues(clock):
    """As a worker tells it that began just now."""
    meter = ServingMeter(lambda: 0)
    clock[0] += 1.0
    meter.tick()
    return meter.counters()["full_queues"]


def test_a_trainer_that_fetches_nothing_fills_its_queue(clock, service, wait_until):
    before = full_queues(clock)
    numbers = tf.data.Dataset.range(1 << 40)
    readers = [iter(data_service.distribute(numbers, service)) for _ in range(2)]
    for reader in readers:
        next(reader)
    wait_until(lambda: full_queues(clock) == before + 2, what="two full queues")


@pytest.mark.slice("data-service")
def test_a_queue_whose_next_element_does_not_come_is_not_full(clock, service):
    before = full_queues(clock)
    slow = tf.data.Dataset.range(300_000).filter(lambda number: number < 3)
    reader = iter(data_service.distribute(slow, service, sharding="off"))
    assert [int(next(reader)) for _ in range(3)] == [0, 1, 2]
    assert full_queues(clock) == before
    assert list(reader) == []


def test_the_queue_of_a_pass_that_has_ended_is_not_full(clock, service):
    before = full_queues(clock)
    assert len(list(data_service.distribute(tf.data.Dataset.range(30), service))) == 30
    assert full_queues(clock) == before
