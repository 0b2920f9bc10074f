"""TFRecord files as datasets: each example once, in one order, on workers too; what does not fit is named."""

import collections

import pytest
import tensorflow as tf

from tfdist import data_service
from tfdist.data_service import from_tfrecord
from tfdist.errors import ConfigError

FEATURES = {"id": tf.io.FixedLenFeature([], tf.int64), "text": tf.io.VarLenFeature(tf.string)}
FILES, RECORDS = 3, 10


def example(number):
    integers = tf.train.Feature(int64_list=tf.train.Int64List(value=[number]))
    texts = tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"t%d" % number] * (number % 3)))
    return tf.train.Example(features=tf.train.Features(feature={"id": integers, "text": texts})).SerializeToString()


def write(path, records, options=""):
    with tf.io.TFRecordWriter(str(path), options) as writer:
        for record in records:
            writer.write(record)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    for file in range(FILES):
        write(folder / f"{file}.tfrecord", [example(file * RECORDS + i) for i in range(RECORDS)])
    return folder


def ids(dataset):
    return [int(number) for batch in dataset for number in batch["id"]]


def test_examples_come_from_the_files_in_turn(folder):
    batches = list(from_tfrecord(folder, FEATURES, batch_size=4))
    in_turn = [file * RECORDS + i for i in range(RECORDS) for file in range(FILES)]
    assert ids(batches) == in_turn
    assert [len(batch["id"]) for batch in batches] == [4] * 7 + [2]
    texts = tf.sparse.to_dense(batches[1]["text"]).numpy().tolist()
    assert [[text for text in row if text] for row in texts] == [[b"t%d" % i] * (i % 3) for i in in_turn[4:8]]


def test_seeded_shuffle_repeats_and_differs_by_pass(folder):
    options = {"batch_size": 4, "shuffle": 8, "seed": 3}
    dataset = from_tfrecord(folder, FEATURES, **options)
    passes = [ids(dataset), ids(dataset)]
    again = from_tfrecord(folder, FEATURES, **options)
    assert [ids(again), ids(again)] == passes
    assert passes[0] != passes[1]
    assert sorted(passes[0]) == sorted(passes[1]) == list(range(FILES * RECORDS))


def test_compressed_files_are_read(tmp_path):
    path = write(tmp_path / "a.tfrecord", [example(5)], "GZIP")
    assert ids(from_tfrecord(path, FEATURES, batch_size=1, compression="GZIP")) == [5]
    with pytest.raises(ConfigError, match=r"a.tfrecord is not a TFRecord file, or its compression is not ''"):
        from_tfrecord(path, FEATURES, batch_size=1)


def test_workers_read_each_file_once(folder):
    dataset = from_tfrecord(folder, FEATURES, batch_size=4, shuffle=8, seed=3)
    with data_service.Dispatcher(data_service.DispatcherConfig()) as dispatcher:
        config = data_service.WorkerConfig(dispatcher.address)
        with data_service.Worker(config), data_service.Worker(config):
            counted = collections.Counter(ids(data_service.distribute(dataset, dispatcher.address)))
    assert counted == collections.Counter(range(FILES * RECORDS))


@pytest.mark.parametrize(
    ("features", "text"),
    [
        ({}, r"must name at least one feature; received \[\].*\['id', 'text'\]"),
        ({"label": tf.io.FixedLenFeature([], tf.int64)}, r"'label' is requested as int64.*'id': 'int64'"),
        ({"id": tf.io.FixedLenFeature([], tf.float32)}, r"'id' is requested as float32.*'id': 'int64'"),
        ({"id": tf.io.FixedLenFeature([2], tf.int64)}, "does not match features"),
    ],
)
def test_feature_that_is_not_there_is_named(folder, features, text):
    with pytest.raises(ConfigError, match=text):
        from_tfrecord(folder, features, batch_size=1)


def test_feature_with_a_default_may_be_missing(folder):
    features = {**FEATURES, "label": tf.io.FixedLenFeature([], tf.int64, default_value=7)}
    batch = next(iter(from_tfrecord(folder, features, batch_size=2)))
    assert batch["label"].numpy().tolist() == [7, 7]


@pytest.mark.parametrize(
    ("records", "options", "text"),
    [
        ([], {}, "found no records in 1 files"),
        ([b"\xff\xff\xff"], {}, "is not a tf.train.Example"),
        ([example(1)], {"batch_size": 0}, "batch_size must be 1 or more"),
        ([example(1)], {"compression": "LZ4"}, "compression must be one of"),
    ],
)
def test_bad_file_or_argument_is_refused(tmp_path, records, options, text):
    path = write(tmp_path / "a.tfrecord", records)
    with pytest.raises(ConfigError, match=text):
        from_tfrecord(path, FEATURES, **{"batch_size": 1, **options})
