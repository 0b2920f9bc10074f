"""The size that is told is the size there is; what does not fit is refused with the figures."""

import importlib
import logging

import pytest
import tensorflow as tf

from tfdist.data_service.store.footprint import Footprint, check_space, footprint, free_disk, free_memory, in_words
from tfdist.errors import ConfigError


def numbers(count):
    return tf.data.Dataset.range(count).map(lambda i: (i, tf.zeros([10, 5], tf.float16)))


def test_types_of_fixed_size_are_not_read():
    def never(i):
        return tf.ensure_shape(tf.reshape(tf.zeros([i]), [-1]), [3])  # fails for every i

    told = footprint(tf.data.Dataset.range(4, 9).map(never))
    assert told == Footprint(12, 5, measured=False)
    assert str(footprint(numbers(1000))) == "108 KB: 1000 elements of 108 bytes (by their type)"


def test_other_elements_are_as_large_as_the_first():
    texts = tf.data.Dataset.from_tensor_slices([["ab", "cde"], ["", ""]])
    assert footprint(texts) == Footprint(5 + 2 * 24, 2, measured=True)
    ragged = tf.data.Dataset.from_tensors(tf.ragged.constant([[1, 2], [3]], dtype=tf.int32))
    assert footprint(ragged) == Footprint(3 * 4 + 3 * 8, 1, measured=True)


def test_an_unknown_number_is_said():
    filtered = numbers(9).filter(lambda i, _: i > 3)
    assert footprint(filtered) == Footprint(108, None, measured=False)
    assert str(footprint(filtered)) == "108 bytes per element (by their type), for an unknown number of elements"
    assert footprint(filtered).total_bytes is None


def test_an_endless_dataset_has_no_footprint():
    with pytest.raises(ConfigError, match="endless"):
        footprint(numbers(1).repeat())


@pytest.mark.parametrize(
    ("elements", "free", "level"),
    [(10, 10_000, logging.INFO), (10, 1500, logging.WARNING), (None, 10**6, logging.WARNING)],
)
def test_what_will_be_taken_is_said(caplog, elements, free, level):
    with caplog.at_level(logging.INFO, "tfdist"):
        check_space("cache", Footprint(100, elements, True), "memory", free)
    (record,) = caplog.records
    assert record.levelno == level
    assert record.message.startswith("tfdist: cache will take ")
    assert record.message.endswith(f", in memory, where {in_words(free)} are free.")


@pytest.mark.parametrize(("elements", "free"), [(10, 999), (None, 99)])
def test_what_does_not_fit_is_refused(elements, free):
    with pytest.raises(ConfigError, match=rf"cache will take .*, in /data, where {free} bytes are free"):
        check_space("cache", Footprint(100, elements, True), "/data", free)


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 bytes"), (999, "999 bytes"), (1500, "1.5 KB"), (32 * 10**8, "3.2 GB")]
)
def test_bytes_in_words(count, words):
    assert in_words(count) == words


@pytest.mark.parametrize(
    ("limit", "used"),
    [("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")],
)
def test_free_memory_is_that_of_the_container(tmp_path, monkeypatch, limit, used):
    monkeypatch.setattr(importlib.import_module("tfdist.data_service.store.footprint"), "_CGROUP", tmp_path)
    assert free_memory() > 1 << 20
    (tmp_path / "memory").mkdir()
    (tmp_path / used).write_text("1000\n")
    (tmp_path / limit).write_text("max\n")
    assert free_memory() > 1 << 20
    (tmp_path / limit).write_text("51000\n")
    assert free_memory() == 50_000


def test_free_disk_of_a_folder_to_be_made(tmp_path):
    assert free_disk(tmp_path / "a" / "b") > 0
