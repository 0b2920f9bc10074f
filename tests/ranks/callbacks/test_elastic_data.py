"""Data that an elastic fit cannot follow: the error says what is in the way, and what to write instead."""

from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.elastic.fit_data import need_elastic_validation, part_of
from tfdist.input import part
from tfdist.world import runtime

ROWS = np.arange(96, dtype="float32").reshape(48, 2)


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return ROWS[index::3], ROWS[index::3]


def whole():
    return tf.data.Dataset.from_tensor_slices(ROWS)


def numbered(dataset):
    return dataset.apply(tf.data.experimental.assert_cardinality(48))


@pytest.fixture(autouse=True)
def _elastic(monkeypatch):
    monkeypatch.setenv("TFDIST_ELASTIC", "1")


FOLLOWED = {
    "samples": (lambda: tfdist.shard(whole()).batch(4).prefetch(1), 4),
    "batches": (lambda: tfdist.shard(whole().batch(4)).map(lambda x: x), 1),
    "global batches": (lambda: tfdist.shard(whole().map(lambda x: x), global_batch=4).map(lambda x: x).prefetch(1), 1),
    "global batches of arrays": (lambda: tfdist.shard((ROWS, ROWS), global_batch=4), 1),
    "a filter of known length": (lambda: tfdist.shard(numbered(whole().filter(lambda x: x[0] > -1))).batch(2), 2),
    "a generator of known length": (
        lambda: tfdist.shard(
            numbered(tf.data.Dataset.from_generator(lambda: iter(ROWS), output_signature=tf.TensorSpec([2])))
        ).batch(3),
        3,
    ),
}


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("case", FOLLOWED)
def test_followed(world, case):
    make, elements = FOLLOWED[case]
    found, unit = part_of(make(), None)
    assert unit == elements
    assert found.elements == (12 if "batches" in case else 48)


@pytest.mark.ranks(1, 2)
def test_batches_of_global_batches_are_refused(world):
    with pytest.raises(tfdist.errors.ConfigError, match=r"regrouped after tfdist.shard\(..., global_batch=4\)"):
        part_of(tfdist.shard(whole(), global_batch=4).batch(2), None)


REFUSED = {
    "arrays": (
        lambda: ROWS,
        r"arrays \(ndarray\) are not a tf.data.Dataset. .*from_tensor_slices.* fit tfdist.shard\(data\)",
    ),
    "sharded arrays": (lambda: tfdist.shard((ROWS, ROWS)), r"arrays \(ndarray\) are not a tf.data.Dataset"),
    "a generator": (
        lambda: iter([ROWS]),
        "list_iterator is not a tf.data.Dataset, .*from_generator.*assert_cardinality",
    ),
    "a dataset of Keras": (Batches, "Batches is not a tf.data.Dataset, so the order and number of its samples"),
    "shuffled": (
        lambda: tfdist.shard(whole()).shuffle(9).batch(4),
        ".shuffle comes after tfdist.shard, .* with a seed",
    ),
    "filtered": (
        lambda: tfdist.shard(whole()).filter(lambda x: x[0] > 3),
        ".filter comes after .* Put it before tfdist.shard.",
    ),
    "kept": (
        lambda: tfdist.shard(whole()).cache().batch(4),
        ".cache comes after tfdist.shard, where only map, batch and",
    ),
    "flattened": (
        lambda: tfdist.shard(whole()).flat_map(tf.data.Dataset.from_tensor_slices).batch(2),
        ".flat_map comes after tfdist.shard",
    ),
    "repeated": (
        lambda: tfdist.shard(whole()).repeat(2).batch(4),
        ".repeat comes after .* pass epochs to fit",
    ),
    "endless": (lambda: tfdist.shard(whole().repeat()).batch(4), "the dataset is endless. Remove .repeat..,"),
    "of unknown length": (
        lambda: tfdist.shard(whole().filter(lambda x: x[0] > 3)).batch(4),
        "the length of the dataset is unknown, .* before tfdist.shard: .*assert_cardinality",
    ),
    "endless global batches": (
        lambda: tfdist.shard(whole().repeat(), global_batch=4),
        "the dataset is endless. Remove .repeat..,",
    ),
    "global batches of unknown length": (
        lambda: tfdist.shard(whole().filter(lambda x: x[0] > 3), global_batch=4),
        "the length of the dataset is unknown",
    ),
    "whole": (lambda: whole().batch(4), "the dataset does not come from tfdist.shard"),
    "padded": (
        lambda: tfdist.shard(whole(), remainder="pad").batch(4),
        '.* policy "auto" or "data" and remainder "drop", the defaults. Fit ',
    ),
    "joined": (
        lambda: tfdist.shard(whole(), remainder="join").batch(4),
        '.* policy "auto" or "data" and remainder "drop", the defaults. Fit ',
    ),
}


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("case", REFUSED)
def test_refused(world, case):
    make, message = REFUSED[case]
    start = r"^DataParallel\(elastic=True\) must reshard the rest of an epoch .* impossible here: "
    with pytest.raises(tfdist.errors.ConfigError, match=start + message):
        part_of(make(), None)


@pytest.mark.ranks(1, 2)
def test_steps_are_refused(world):
    for data, more in (
        (tfdist.shard(whole()), "Remove it; "),
        (whole().repeat(), "Remove it, and .repeat.. with it; "),
    ):
        with pytest.raises(
            tfdist.errors.ConfigError, match=rf"does not support steps_per_epoch \(received 7\): .*{more}"
        ):
            part_of(data.batch(4), 7)


VALIDATED = {
    "whole": lambda: whole().batch(4),
    "whole arrays": lambda: (ROWS, ROWS),
    "none": lambda: None,
    "samples": lambda: tfdist.shard(whole()).batch(4),
    "joined": lambda: tfdist.shard(whole().batch(5), remainder="join"),
    "global batches": lambda: tfdist.shard((ROWS, ROWS), global_batch=4),
}


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("case", VALIDATED)
def test_validation_that_is_shared_out_again(world, case):
    need_elastic_validation(VALIDATED[case]())


NOT_VALIDATED = {
    "arrays": (lambda: tfdist.shard((ROWS, ROWS)), "tfdist.shard got arrays"),
    "padded": (lambda: tfdist.shard(whole(), remainder="pad").batch(4), "by file or padded"),
    "of unknown length": (lambda: tfdist.shard(whole().filter(lambda x: x[0] > 3)).batch(4), "of unknown length"),
}


@pytest.mark.ranks(2)
@pytest.mark.parametrize("case", NOT_VALIDATED)
def test_validation_that_stays_is_refused(world, case):
    """After a loss a part of it would be left out."""
    make, kind = NOT_VALIDATED[case]
    remedy = r'validation_data=tfdist.shard\(data, remainder="join"\) of a tf.data.Dataset of known length'
    with pytest.raises(tfdist.errors.ConfigError, match=rf"share out the validation data again .*{kind}.* {remedy}"):
        need_elastic_validation(make())


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("remainder", ["drop", "join"])
def test_a_part_is_shared_out_again(world, remainder):
    """By the ranks that there are when it is read, not by those that were there when it was made."""
    rank, rows = tfdist.rank(), tf.data.Dataset.range(11)
    with mock.patch.multiple(runtime, size=lambda: 4, rank=lambda: rank + 1):
        data = tfdist.shard(rows, remainder=remainder)
        first = [int(row) for row in data]
    part.deal_all()
    joins = remainder == "join"
    assert [int(row) for row in data] == list(range(rank, 11 if joins else 11 // world * world, world))
    assert first == list(range(rank + 1, 11 if joins else 8, 4))
