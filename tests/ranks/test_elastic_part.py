"""Parts of a dataset that can be dealt out anew: by which rank which element is read, and in which order."""

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist import data_service
from tfdist.input import part as part_module
from tfdist.input import pipeline
from tfdist.input.part import ElasticPart, order_of, put_in_order


def read(dataset):
    return [np.asarray(element).tolist() for element in dataset]


SOURCES = {
    "range": lambda: tf.data.Dataset.range(23),
    "rows": lambda: tf.data.Dataset.from_tensor_slices({"x": np.arange(23), "y": (np.ones(23),)}).map(
        lambda row: row["x"]
    ),
    "others": lambda: tf.data.Dataset.range(23).cache(),
}


@pytest.mark.ranks(1, 2, 3, 4)
@pytest.mark.parametrize("source", SOURCES)
def test_each_element_of_whole_rounds_is_read_by_one_rank(world, source, monkeypatch):
    monkeypatch.setattr(part_module, "_CHUNK", 4)  # several, and the last one is short
    monkeypatch.setattr(part_module, "_ROWS", 3)
    part = ElasticPart(SOURCES[source]())
    assert read(part.dataset) == list(range(tfdist.rank(), 23 // world * world, world))
    assert part.deal(5) == 18 // world
    assert read(part.dataset) == list(range(5 + tfdist.rank(), 5 + 18 // world * world, world))
    assert part.deal(5, unit=2) == 9 // world
    assert read(part.dataset) == list(range(5 + tfdist.rank(), 5 + 9 // world * world * 2, world))
    assert part.deal(23) == part.deal(30) == 0
    assert read(part.dataset) == []
    part_module.deal_all()
    assert len(read(part.dataset)) == 23 // world


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("source", ["range", "rows"])
def test_what_is_left_of_a_shuffled_epoch_is_read_in_its_order(world, source, late):
    rows = {"range": tf.data.Dataset.range(24), "rows": tf.data.Dataset.from_tensor_slices(np.arange(24))}[source]
    part = ElasticPart(
        rows.shuffle(24, seed=2).map(lambda x: (x, -x)) if late else rows.map(lambda x: (x, -x)).shuffle(24, 2)
    )
    data = part.dataset.map(lambda x, y: x).batch(2).prefetch(1)
    first = read(data)
    iterator = iter(data)
    order = order_of(iterator)
    second = read(iterator)
    again = iter(data)
    put_in_order(again, order)
    assert read(again) == second != first
    part.deal(world * 4)
    rest = iter(data)
    put_in_order(rest, order)
    by_rank = tfdist.allgather_object((second, read(rest)))
    epoch = np.stack([np.ravel(rows) for rows, _ in by_rank], 1).ravel()  # element i is of rank i % world
    left = np.stack([np.ravel(rows) for _, rows in by_rank], 1).ravel()
    np.testing.assert_array_equal(left, epoch[world * 4 :])


@pytest.mark.ranks(1, 2)
def test_maps_run_for_own_rows_only(world):
    calls = []

    def note(row):
        calls.append(int(row))
        return row

    rows = tf.data.Dataset.from_tensor_slices(np.arange(24)).shuffle(24, seed=2)
    part = ElasticPart(rows.map(lambda row: tf.numpy_function(note, [row], tf.int64)))
    part.deal(8)
    mine = read(part.dataset)
    assert calls == mine
    assert len(mine) == 16 // world


@pytest.mark.ranks(2)
def test_batch_size_is_seen_through_order_keeping_steps(world, monkeypatch):
    monkeypatch.setenv("TFDIST_ELASTIC", "1")
    part = tfdist.shard(tf.data.Dataset.range(48))
    made, unit = pipeline.elastic_part_of(part)
    assert made.dataset is part
    assert unit == 1
    batches = part.map(lambda x: x + 1, num_parallel_calls=2).batch(4).prefetch(1)
    assert pipeline.elastic_part_of(batches.batch(2)) == (made, 8)
    assert pipeline.elastic_part_of(part.padded_batch(3)) == (made, 3)
    assert pipeline.elastic_part_of(data_service.measure_wait(part.batch(2)).prefetch(1)) == (made, 2)
    for other in (part.shuffle(3), part.repeat(2), part.filter(lambda x: x > 3), batches.unbatch(), part.cache()):
        assert pipeline.elastic_part_of(other) == (None, 0)
    # Where the length is not known, the part stays what it is.
    endless = tfdist.shard(tf.data.Dataset.range(48).repeat())
    assert pipeline.elastic_part_of(endless) == (None, 0)
    assert read(endless.take(2)) == [tfdist.rank(), tfdist.rank() + 2]


@pytest.mark.ranks(2, 3)
def test_short_batches_are_left_out_of_a_part(world, monkeypatch):
    monkeypatch.setenv("TFDIST_ELASTIC", "1")
    part = tfdist.shard(tf.data.Dataset.range(31).batch(5))
    sizes = [len(batch) for batch in read(part)]
    assert sizes == [5] * (6 // world)
    with pytest.raises(tfdist.errors.ConfigError, match=f"found 1 full batches or samples; {world} are needed"):
        tfdist.shard(tf.data.Dataset.range(31).batch(30))
