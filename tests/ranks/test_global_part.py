"""What `tfdist.shard(..., global_batch=N)` gives each rank: its share of every global batch, in order."""

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.errors import ConfigError
from tfdist.input import part as part_module
from tfdist.input import pipeline

ROWS, GLOBAL = 50, 8  # six global batches, and two samples that are left over


def steps_of(dataset):
    """The samples of every global batch, the shares of the ranks one after the other."""
    mine = [batch.numpy().tolist() for batch in dataset]
    by_rank = tfdist.allgather_object(mine, name="shares")
    return [[sample for share in step for sample in share] for step in zip(*by_rank, strict=True)]


def share_of(step):
    """What this rank must get of a list of samples."""
    first, end = (len(step) * place // tfdist.size() for place in (tfdist.rank(), tfdist.rank() + 1))
    return step[first:end]


def in_steps(samples):
    return [samples[begin : begin + GLOBAL] for begin in range(0, len(samples) - GLOBAL + 1, GLOBAL)]


def double(sample):
    return sample * 2


SOURCES = {
    "range": lambda: tf.data.Dataset.range(ROWS),
    "rows": lambda: tf.data.Dataset.from_tensor_slices(np.arange(ROWS)).prefetch(1),
    "shuffled rows": lambda: (
        tf.data.Dataset.from_tensor_slices(np.arange(ROWS)).shuffle(9).prefetch(1).shuffle(ROWS, seed=4)
    ),
    "shuffled": lambda: tf.data.Dataset.range(ROWS).shuffle(ROWS, seed=4),
    "unknown length": lambda: tf.data.Dataset.range(2 * ROWS).filter(lambda sample: sample % 2 == 1),
    "maps": lambda: tf.data.Dataset.range(ROWS).map(double).prefetch(2).map(double, num_parallel_calls=2).prefetch(1),
    "map in the middle": lambda: tf.data.Dataset.range(ROWS).map(double).shuffle(9, seed=2),
    "map of unknown length": lambda: (
        tf.data.Dataset.range(ROWS)
        .filter(lambda sample: sample >= 0)
        .map(double)
        .apply(tf.data.experimental.assert_cardinality(ROWS))
        .map(double)
    ),
}


@pytest.mark.ranks(1, 2, 3, 4)
@pytest.mark.parametrize("source", SOURCES)
def test_steps_are_those_of_one_process(world, source):
    tf.random.set_seed(3)
    expected = [batch.numpy().tolist() for batch in SOURCES[source]().batch(GLOBAL, drop_remainder=True)]
    tf.random.set_seed(3)
    dataset = tfdist.shard(SOURCES[source](), global_batch=GLOBAL)
    assert dataset.element_spec.shape.as_list() == [None]
    known = source != "unknown length"
    assert int(dataset.cardinality()) == (6 if known else tf.data.UNKNOWN_CARDINALITY)
    assert [batch.numpy().tolist() for batch in dataset] == [share_of(step) for step in expected]
    assert len(expected) == 6


@pytest.mark.ranks(1, 3)
def test_order_is_another_one_in_each_epoch(world):
    tf.random.set_seed(3)
    dataset = tfdist.shard(tf.data.Dataset.range(ROWS).shuffle(ROWS, seed=4), global_batch=GLOBAL)
    epochs = [sum(steps_of(dataset), []) for _ in range(2)]
    assert epochs[0] != epochs[1]
    assert all(len(set(epoch)) == 48 for epoch in epochs)


def slices():
    return tf.data.Dataset.from_tensor_slices({"x": np.arange(2 * ROWS).reshape(ROWS, 2), "y": (np.arange(ROWS),)})


def reads_all(dataset):
    """Whether rows of tensors are read before they are chosen."""
    return any(type(node).__name__ == "_TensorSliceDataset" for node in pipeline.nodes(dataset))


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("reshuffled", [True, False])
def test_rows_of_tensors_are_read_when_they_are_chosen(world, reshuffled):
    """And not those of other ranks, or those that a resumed epoch skips."""
    rows = slices().shuffle(ROWS, seed=4, reshuffle_each_iteration=reshuffled).repeat(2)
    assert reads_all(rows)
    dataset = tfdist.shard(rows, global_batch=GLOBAL)
    assert not reads_all(dataset)
    for _ in range(2):
        expected = [int(row["y"][0]) for row in rows]
        found = [[x.tolist() for x in batch["x"].numpy()] for batch in dataset]
        assert found == [share_of([[2 * row, 2 * row + 1] for row in step]) for step in in_steps(expected)]


@pytest.mark.ranks(1)
def test_shards_of_rows_shuffled_without_a_seed_are_disjoint(world):
    tf.random.set_seed(None)
    rows = slices().shuffle(ROWS, reshuffle_each_iteration=False)
    first, rest = (tfdist.shard(rows, global_batch=GLOBAL) for _ in range(2))
    numbers = [[int(y) for batch in dataset for y in batch["y"][0]] for dataset in (first.take(4), rest.skip(4))]
    assert sorted(sum(numbers, [])) == sorted(set(sum(numbers, [])))
    assert [len(each) for each in numbers] == [4 * GLOBAL, 2 * GLOBAL]


@pytest.mark.ranks(1, 2)
def test_rows_shuffled_under_another_seed_keep_their_order(world):
    tf.random.set_seed(3)
    rows = slices().shuffle(ROWS, reshuffle_each_iteration=False)
    tf.random.set_seed(4)
    dataset = tfdist.shard(rows, global_batch=GLOBAL)
    assert reads_all(dataset)
    expected = [int(row["y"][0]) for row in rows]
    assert [batch["y"][0].numpy().tolist() for batch in dataset] == [share_of(step) for step in in_steps(expected)]


@pytest.mark.ranks(1, 2, 3)
def test_endless_data(world):
    dataset = tfdist.shard(tf.data.Dataset.range(11).repeat(), global_batch=GLOBAL)
    assert int(dataset.take(4).cardinality()) in (4, tf.data.UNKNOWN_CARDINALITY)
    assert sum(steps_of(dataset.take(4)), []) == [number % 11 for number in range(4 * GLOBAL)]


@pytest.mark.ranks(1, 2, 3)
def test_arrays_of_every_kind(world):
    x, y = np.arange(2 * ROWS).reshape(ROWS, 2), np.arange(ROWS).astype("float32")
    ragged = tf.RaggedTensor.from_row_lengths(np.arange(150), [number % 7 for number in range(49)] + [3])
    dataset = tfdist.shard([{"x": x, "ragged": ragged}, y], global_batch=GLOBAL)
    assert int(dataset.cardinality()) == 6
    for number, (inputs, labels) in enumerate(dataset):
        rows = share_of(list(range(number * GLOBAL, (number + 1) * GLOBAL)))
        assert np.array_equal(inputs["x"], x[rows])
        assert np.array_equal(labels, y[rows])
        assert inputs["ragged"].to_list() == tf.gather(ragged, rows).to_list()


@pytest.mark.ranks(1, 3)
def test_sparse_and_dict_samples(world):
    rows = np.eye(ROWS, dtype="int64")
    samples = tf.data.Dataset.from_tensor_slices({"a": tf.sparse.from_dense(rows), "b": np.arange(ROWS)})
    for number, batch in enumerate(tfdist.shard(samples, global_batch=GLOBAL)):
        mine = share_of(list(range(number * GLOBAL, (number + 1) * GLOBAL)))
        assert batch["b"].numpy().tolist() == mine
        assert np.array_equal(tf.sparse.to_dense(batch["a"]), rows[mine])


@pytest.mark.ranks(1, 2, 3)
def test_last_maps_run_for_own_samples_only(world):
    tf.random.set_seed(3)
    seen = []

    def note(sample):
        seen.append(int(sample))
        return sample

    samples = tf.data.Dataset.range(ROWS).shuffle(ROWS, seed=1).map(lambda s: tf.py_function(note, [s], tf.int64))
    samples = samples.map(lambda sample: tf.ensure_shape(sample, []))
    mine = [sample for batch in tfdist.shard(samples, global_batch=GLOBAL) for sample in batch.numpy().tolist()]
    assert seen[: len(mine)] == mine
    assert len(seen) - len(mine) <= GLOBAL  # those of the last, incomplete batch may have been read ahead
    assert len(set(sum(tfdist.allgather_object(mine), []))) == 48


@pytest.mark.ranks(2, 3)
def test_continuing_at_a_global_batch(world, monkeypatch):
    """As when ranks were lost: the next steps are the same, for another number of ranks."""
    monkeypatch.setenv("TFDIST_ELASTIC", "1")
    dataset = tfdist.shard(tf.data.Dataset.range(ROWS).map(double), global_batch=GLOBAL)
    part, unit = pipeline.elastic_part_of(dataset.map(double).prefetch(1))
    assert (part.elements, unit) == (6, 1)
    assert part.round_size(unit) == 1
    assert part.deal(2) == 4
    assert steps_of(dataset) == in_steps([2 * number for number in range(ROWS)])[2:]
    part_module.deal_all()
    assert len(steps_of(dataset)) == 6
    with pytest.raises(ConfigError, match=r"Remove .batch"):
        part.deal(0, pipeline.elastic_part_of(dataset.batch(2))[1])


REFUSED = {
    "a fraction": ({"global_batch": 8.0}, "a whole number of samples.*received 8.0"),
    "a truth": ({"global_batch": True}, "a whole number"),
    "nothing": ({"global_batch": 0}, "1 or more; received 0"),
    "files": ({"global_batch": 8, "policy": "file"}, 'policy must be "auto" or "data"; received \'file\''),
    "off": ({"global_batch": 8, "policy": "off"}, "received 'off'"),
    "join": ({"global_batch": 8, "remainder": "join"}, "remainder must be \"drop\", received 'join'"),
    "pad": ({"global_batch": 8, "remainder": "pad"}, "received 'pad'"),
    "a limit without a global batch": ({"max_local_batch": 4}, r"needs global_batch; received None.*\.batch\(4\)"),
    "a limit of nothing": ({"global_batch": 8, "max_local_batch": 0}, "max_local_batch must be.*1 or more; received 0"),
    "a limit that is a fraction": ({"global_batch": 8, "max_local_batch": 2.0}, "a whole number.*received 2.0"),
    "a limit that is a truth": ({"global_batch": 8, "max_local_batch": True}, "a whole number.*received True"),
    "too few": ({"global_batch": 51}, "found 50 samples, which is no full global batch of 51"),
}


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("case", REFUSED)
def test_refused_on_every_rank(world, case):
    arguments, message = REFUSED[case]
    for data in (tf.data.Dataset.range(ROWS), np.arange(ROWS)):
        with pytest.raises(ConfigError, match=message):
            tfdist.shard(data, **arguments)


@pytest.mark.ranks(1, 2)
def test_batches_are_refused(world):
    for batches in (tf.data.Dataset.range(ROWS).batch(5), tf.data.Dataset.range(ROWS).batch(5).shuffle(3).map(double)):
        with pytest.raises(ConfigError, match=r"received batches of 5. Remove .batch\(5\)"):
            tfdist.shard(batches, global_batch=GLOBAL)
    sequences = tf.data.Dataset.range(ROWS).batch(5, drop_remainder=True)
    single = sequences.flat_map(lambda *sample: tf.data.Dataset.from_tensors(sample))
    (batch,) = next(iter(tfdist.shard(single, global_batch=GLOBAL)))
    assert batch.shape == (8 // world, 5)


@pytest.mark.ranks(2, 3)
def test_what_only_several_ranks_can_get_wrong(world):
    last = tfdist.rank() == world - 1
    with pytest.raises(ConfigError, match=rf"global_batch={world - 1} is less than the number of ranks \({world}\)"):
        tfdist.shard(np.arange(ROWS), global_batch=world - 1)
    with pytest.raises(ConfigError, match=r"different global_batch .*rank 0: 8, rank 1"):
        tfdist.shard(np.arange(ROWS), global_batch=9 if last else 8)
    with pytest.raises(ConfigError, match=r"different max_local_batch .*rank 0: None, rank 1"):
        tfdist.shard(np.arange(ROWS), global_batch=8, max_local_batch=4 if tfdist.rank() else None)
    with pytest.raises(ConfigError, match="different number of elements"):
        tfdist.shard(np.arange(ROWS + last), global_batch=GLOBAL)
