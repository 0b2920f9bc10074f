"""What workers cannot share is refused, in a few words, and only where they cannot."""

import pytest
import tensorflow as tf

from tfdist.data_service import cache, from_tfrecord, load, save
from tfdist.data_service.trainer.fitness import check_fit
from tfdist.errors import ConfigError

NUMBERS = tf.data.Dataset.range(20)
POLICIES = ("off", "dynamic", "file", "data", "file_or_data", "hint")
LONGEST_ERROR = 400


def refusal(dataset, sharding):
    with pytest.raises(ConfigError) as caught:
        check_fit(dataset, sharding)
    assert len(str(caught.value)) < LONGEST_ERROR
    return str(caught.value)


@pytest.fixture
def paths(tmp_path):
    made = []
    for number in range(3):
        made.append(str(tmp_path / f"{number}.txt"))
        (tmp_path / f"{number}.txt").write_text(f"{number}\n{number + 10}\n")
    return made


@pytest.mark.parametrize("sharding", POLICIES)
def test_a_cache_in_a_folder_is_refused_and_named(sharding, tmp_path):
    dataset = cache(NUMBERS, tmp_path / "kept").map(lambda x: x + 1)
    text = refusal(dataset, sharding)
    assert str(tmp_path / "kept") in text and "Put cache(...) after `distribute`" in text


@pytest.mark.parametrize("sharding", ["off", "data", "file_or_data", "hint"])
def test_a_cache_in_memory_fits_fixed_parts(sharding):
    check_fit(cache(NUMBERS), sharding)


def test_a_cache_in_memory_does_not_fit_dynamic_sharding():
    assert "a cache in memory" in refusal(cache(NUMBERS).batch(2), "dynamic")


def test_a_cache_within_one_element_is_that_elements_own():
    check_fit(NUMBERS.interleave(lambda x: tf.data.Dataset.from_tensors(x).cache().repeat(2)), "dynamic")


def test_a_snapshot_is_shared_by_its_shards(tmp_path):
    save(NUMBERS, tmp_path / "snap", shards=2)
    assert 'load(..., order="shards")' in refusal(load(tmp_path / "snap").batch(2), "dynamic")
    check_fit(load(tmp_path / "snap"), "off")
    check_fit(load(tmp_path / "snap", order="shards"), "dynamic")


def test_an_asserted_number_is_refused_for_parts_by_files(paths):
    texts = tf.data.TextLineDataset(paths)
    assert "assert_cardinality after" in refusal(texts.apply(tf.data.experimental.assert_cardinality(6)), "file")


def test_parts_by_files_want_files(paths, tmp_path):
    """TensorFlow looks for those that it opens by ops of its own; a name that is read by a map is none of them."""
    read = tf.data.Dataset.from_tensor_slices(paths).map(tf.io.read_file)
    for dataset in (NUMBERS, read, tf.data.Dataset.list_files(paths).map(tf.io.read_file)):
        assert "needs a dataset that starts with files" in refusal(dataset, "file")
        check_fit(dataset, "file_or_data")
    with tf.io.TFRecordWriter(str(tmp_path / "a.tfrecord")) as writer:
        one = tf.train.Feature(int64_list=tf.train.Int64List(value=[1]))
        writer.write(tf.train.Example(features=tf.train.Features(feature={"x": one})).SerializeToString())
    examples = from_tfrecord(tmp_path / "a.tfrecord", {"x": tf.io.FixedLenFeature([], tf.int64)}, batch_size=1)
    for dataset in (
        tf.data.TextLineDataset(paths).map(tf.strings.upper).batch(2),
        tf.data.Dataset.list_files(paths).interleave(tf.data.TextLineDataset),
        examples,
    ):
        check_fit(dataset, "file")


def test_refused_without_files_by_tensorflow_too(paths):
    """Its own words for a dataset that reads names by a map; and it takes the one that we take."""
    names = tf.data.Dataset.list_files(paths)
    with pytest.raises(tf.errors.NotFoundError, match="unshardable source dataset"):
        first_half(names.map(tf.io.read_file))
    first_half(names.interleave(tf.data.TextLineDataset))


def first_half(dataset):
    """The part of the first of two workers, as TensorFlow's rewriting by files makes it."""
    return tf.raw_ops.AutoShardDataset(
        input_dataset=tf.data.experimental.to_variant(dataset),
        num_workers=2,
        index=0,
        output_types=[tf.string],
        output_shapes=[tf.TensorShape([])],
        auto_shard_policy=int(tf.data.experimental.AutoShardPolicy.FILE),
    )
