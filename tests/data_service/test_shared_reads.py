"""Trainers that read together: the same bucket in each step, or the same elements made once. Counted one by one."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import tensorflow as tf

from tfdist import data_service
from tfdist.native import library

BATCH, STEPS = 4, 12
BOUNDARIES = (4, 8)
READ = 200
# What trainers ask for ahead of what they have been given.
AHEAD = 40


def sentences() -> Any:
    """Each number as often as its length says."""
    return tf.data.Dataset.range(1 << 40).repeat().map(lambda number: tf.fill([length_of(number)], number))


def length_of(number: Any) -> Any:
    """1 to 10, in an irregular way."""
    return 1 + number * number * 7 % 11 % 10


def bucket_of(length: Any) -> Any:
    return tf.reduce_sum(tf.cast(length >= tf.constant(BOUNDARIES), tf.int64))


def batches(trainers: int) -> Any:
    """Batches of about one length, so many of each bucket one after the other as there are trainers."""
    batched = sentences().bucket_by_sequence_length(
        tf.size, bucket_boundaries=BOUNDARIES, bucket_batch_sizes=[BATCH] * (len(BOUNDARIES) + 1)
    )
    return batched.group_by_window(lambda batch: bucket_of(tf.shape(batch)[1]), lambda _, window: window, trainers)


@pytest.fixture(params=[1, 2], ids=lambda number: f"{number} workers")
def workers(request: pytest.FixtureRequest, dispatcher: Any, worker_of: Any) -> tuple[int, str]:
    """How many there are, and the address of their dispatcher."""
    for _ in range(request.param):
        worker_of(dispatcher)
    return request.param, dispatcher.address


def steps_of(reader: Any) -> list[tuple[int, list[int]]]:
    """Bucket and numbers of each batch."""
    return [(int(bucket_of(batch.shape[1])), [int(row[0]) for row in batch]) for batch in reader.take(STEPS)]


def read_together(trainers: int, address: str) -> list[list[tuple[int, list[int]]]]:
    """The steps of each trainer."""
    settings = {"job_name": "together", "num_consumers": trainers}
    dataset = batches(trainers)
    readers = [data_service.distribute(dataset, address, consumer_index=index, **settings) for index in range(trainers)]
    with ThreadPoolExecutor(trainers) as pool:
        return list(pool.map(steps_of, readers))


def of_bucket(steps: Iterable[tuple[int, list[int]]], bucket: int) -> list[int]:
    return [number for found, batch in steps if found == bucket for number in batch]


@pytest.mark.parametrize("trainers", [2, 3])
def test_all_trainers_get_the_same_bucket_in_a_step(workers: tuple[int, str], trainers: int) -> None:
    read = read_together(trainers, workers[1])
    buckets = [[bucket for bucket, _ in steps] for steps in read]
    assert buckets == [buckets[0]] * trainers
    assert set(buckets[0]) == {0, 1, 2}, "the steps show nothing: all are of one bucket"
    counts = collections.Counter(number for steps in read for _, batch in steps for number in batch)
    assert set(counts.values()) == {1}
    assert len(counts) == trainers * STEPS * BATCH


@pytest.mark.parametrize("trainers", [2, 3])
def test_nothing_is_left_out(dispatcher: Any, worker_of: Any, trainers: int) -> None:
    """The numbers of each bucket come in their order, trainer by trainer in each step."""
    worker_of(dispatcher)
    steps = [batch for step in zip(*read_together(trainers, dispatcher.address), strict=True) for batch in step]
    for bucket in range(3):
        got = of_bucket(steps, bucket)
        expected = (number for number in range(10_000) if int(bucket_of(length_of(number))) == bucket)
        assert got == [next(expected) for _ in got]


def test_idle_trainer_delays_the_others_for_a_bounded_time(dispatcher: Any, worker_of: Any) -> None:
    worker_of(dispatcher)
    reader = data_service.distribute(
        batches(2), dispatcher.address, job_name="alone", consumer_index=0, num_consumers=2, wait_seconds=1
    )
    with pytest.raises(tf.errors.DeadlineExceededError):
        list(reader.take(STEPS))


def read_all(dataset: Any, address: str, name: str | None, max_outstanding_requests: int | None = None) -> list[int]:
    reader = data_service.distribute(
        dataset,
        address,
        "off",
        job_name="tuning" if name else None,
        cross_trainer_cache=name,
        max_outstanding_requests=max_outstanding_requests,
    )
    return [int(element) for element in reader.take(READ)]


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "one after the other"])
def test_cache_gives_two_trainers_elements_made_once(dispatcher: Any, worker_of: Any, at_once: bool) -> None:
    worker_of(dispatcher)
    numbers = tf.data.Dataset.random().map(lambda number: number)  # another sequence whenever it is made again
    before = library.read_serving().elements
    with ThreadPoolExecutor(2 if at_once else 1) as pool:
        first, second = pool.map(lambda name: read_all(numbers, dispatcher.address, name), ("one", "two"))
    made = library.read_serving().elements - before
    assert first == second
    assert len(set(first)) == READ
    assert READ <= made <= READ + AHEAD


def test_without_a_cache_each_trainer_has_its_elements_made(dispatcher: Any, worker_of: Any) -> None:
    """What the counts above are compared with."""
    worker_of(dispatcher)
    numbers = tf.data.Dataset.random().map(lambda number: number)
    before = library.read_serving().elements
    first, second = (read_all(numbers, dispatcher.address, None, 1) for _ in range(2))
    assert first != second
    assert library.read_serving().elements - before >= 2 * READ
