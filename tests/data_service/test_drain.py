"""A worker that drains takes no new part of the data and loses none of what it holds."""

import collections

import pytest
import tensorflow as tf

from tfdist import data_service
from tfdist.data_service.trainer import watch

ELEMENTS = 1200
FILES = 12
LINES = ELEMENTS // FILES


def write_texts(folder):
    for file in range(FILES):
        lines = (str(file * LINES + line) for line in range(LINES))
        (folder / f"{file:02}.txt").write_text("\n".join(lines))
    return str(folder / "*.txt")


def write_records(folder):
    paths = [str(folder / f"{file}.tfrecord") for file in range(FILES)]
    for file, path in enumerate(paths):
        with tf.io.TFRecordWriter(path) as writer:
            for line in range(LINES):
                writer.write(str(file * LINES + line))
    return paths


def number(text):
    return tf.strings.to_number(text, tf.int64)


def interleave(files, kind, calls):
    return files.interleave(kind, cycle_length=3, num_parallel_calls=calls).map(number)


SOURCES = {
    "range": lambda _: tf.data.Dataset.range(ELEMENTS),
    "tensor_slices": lambda _: tf.data.Dataset.from_tensor_slices(tf.range(ELEMENTS, dtype=tf.int64)),
    "interleaved_records": lambda folder: interleave(
        tf.data.Dataset.from_tensor_slices(write_records(folder)), tf.data.TFRecordDataset, 2
    ),
    "interleaved_texts": lambda folder: interleave(
        tf.data.Dataset.list_files(write_texts(folder), shuffle=False), tf.data.TextLineDataset, 1
    ),
    "sequentially_interleaved_texts": lambda folder: interleave(
        tf.data.Dataset.list_files(write_texts(folder), shuffle=False), tf.data.TextLineDataset, None
    ),
    "flat_map": lambda folder: (
        tf.data.Dataset.list_files(write_texts(folder), shuffle=False).flat_map(tf.data.TextLineDataset).map(number)
    ),
    "concatenated": lambda _: tf.data.Dataset.range(ELEMENTS // 2).concatenate(
        tf.data.Dataset.range(ELEMENTS // 2, ELEMENTS)
    ),
    "shuffled_and_prefetched": lambda _: tf.data.Dataset.range(ELEMENTS).shuffle(100).prefetch(20),
    "parallel_map": lambda _: tf.data.Dataset.range(ELEMENTS).map(lambda x: x + 0, num_parallel_calls=2),
}


@pytest.mark.parametrize("source", SOURCES)
def test_every_element_comes_once_though_a_worker_drains(source, drainable, tmp_path):
    address, worker = drainable
    before = worker.tell("go on")
    dataset = SOURCES[source](tmp_path).map(lambda x: (x, tf.zeros([1000])))
    distributed = data_service.distribute(dataset, address, max_outstanding_requests=2)
    counts = collections.Counter()
    at_drain = None
    for element, _ in distributed:
        counts[int(element)] += 1
        if at_drain is None and worker.tell("read").elements > before.elements:
            at_drain = worker.tell("drain")
    after = worker.tell("read")
    assert counts == collections.Counter(range(ELEMENTS))
    assert at_drain is not None and at_drain.draining == 1
    assert after.ended_iterators == before.ended_iterators + 1
    # A split that was asked for when the flag was set may still have come; each of several sources may have one.
    assert after.splits - at_drain.splits <= 2
    assert after.elements - before.elements < ELEMENTS


def test_a_draining_worker_gets_nothing_of_a_new_pass(drainable):
    address, worker = drainable
    before = worker.tell("drain")
    distributed = data_service.distribute(tf.data.Dataset.range(ELEMENTS), address)
    assert sorted(int(element) for element in distributed) == list(range(ELEMENTS))
    assert worker.tell("read").elements == before.elements
    assert worker.tell("go on").draining == 0


def test_repeated_data_ends_on_a_draining_worker(drainable, wait_until):
    """`repeat` would begin the next round; it finds nothing there and ends."""
    address, worker = drainable
    before = worker.tell("go on")
    endless = data_service.distribute(tf.data.Dataset.range(20).repeat(), address, max_outstanding_requests=2)
    elements = iter(endless.take(100_000))
    wait_until(lambda: next(elements) is not None and worker.tell("read").elements > before.elements)
    worker.tell("drain")
    ended = before.ended_iterators + 1
    wait_until(lambda: next(elements) is not None and worker.tell("read").ended_iterators == ended)
    worker.tell("go on")


def test_data_that_sharding_does_not_reach_is_refused(drainable, tmp_path):
    """TensorFlow runs it without sharding and without a word: every element comes from every worker."""
    files = tf.data.Dataset.list_files(write_texts(tmp_path))
    dataset = interleave(files, tf.data.TextLineDataset, None)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"dynamic sharding does not reach .* num_parallel_calls"):
        list(data_service.distribute(dataset, drainable[0]))


def test_a_cache_in_a_file_may_answer_in_its_stead(service, tmp_path):
    """`distribute` refuses it, for the sake of several workers; the op that a worker runs takes it."""
    served = watch.serve(tf.data.Dataset.range(20).cache(str(tmp_path / "cache")))
    policy, target = tf.data.experimental.service.ShardingPolicy.DYNAMIC, f"grpc://{service.partition('/')[0]}"
    distributed = served.apply(tf.data.experimental.service.distribute(policy, target))
    for _ in range(2):
        assert sorted(int(element) for element in distributed) == list(range(20))
