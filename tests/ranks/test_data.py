"""What `tfdist.shard` gives each rank of a real job, and what the ranks tell each other about their data."""

import types

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist import data_service
from tfdist.errors import ConfigError
from tfdist.input import mark


def parts_of(dataset):
    """The elements of every rank's part, by rank."""
    mine = [tf.nest.map_structure(lambda value: value.numpy().tolist(), element) for element in dataset]
    return tfdist.allgather_object(mine, name="parts")


def assert_warned(seen, text):
    """Rank 0 has warned, and nobody else."""
    if tfdist.rank() == 0:
        assert len(seen) == 1
        assert text in seen[0]
    else:
        assert seen == []


@pytest.mark.ranks(1, 2, 3, 4)
@pytest.mark.parametrize("remainder", ["drop", "pad"])
def test_parts_of_a_shuffled_dataset_cover_it(world, remainder, warnings_of_tfdist):
    tf.random.set_seed(7)
    dataset = tf.data.Dataset.range(26).shuffle(26, seed=9).batch(2)
    part = tfdist.shard(dataset, remainder=remainder)
    steps = 13 // world if remainder == "drop" else -(-13 // world)
    assert int(part.cardinality()) == steps
    for _ in range(2):
        batches = parts_of(part)
        assert [len(mine) for mine in batches] == [steps] * world
        seen = [sample for mine in batches for batch in mine for sample in batch]
        assert len(set(seen)) == (2 * steps * world if remainder == "drop" else 26)
    assert warnings_of_tfdist == []


@pytest.mark.ranks(1, 2)
def test_batches_of_any_number_of_rows_are_full_batches(world):
    """The short last batch is left out by `.batch`'s count of samples; a world of one leaves out nothing."""
    batches = tf.data.Dataset.range(10).filter(lambda _: True).batch(4).map(lambda numbers: tf.repeat(numbers, numbers))
    rows = [[len(batch) for batch in mine] for mine in parts_of(tfdist.shard(batches))]
    assert rows == ([[6, 22, 17]] if world == 1 else [[6], [22]])


@pytest.mark.ranks(1, 2, 3)
def test_rows_of_arrays(world, warnings_of_tfdist):
    x, y = np.arange(20).reshape(10, 2), np.arange(10.0)
    mine, labels = tfdist.shard((x, y))
    rows = 10 // world
    assert np.array_equal(mine, x[: rows * world][tfdist.rank() :: world])
    assert sorted(sum(tfdist.allgather_object(labels.tolist()), [])) == list(range(rows * world))
    assert len(tfdist.shard(x, remainder="pad")) == -(-10 // world)
    assert warnings_of_tfdist == []


@pytest.mark.ranks(1, 2)
def test_off_and_a_world_of_one_change_nothing(world):
    dataset = tf.data.Dataset.range(5).batch(2)
    assert tfdist.shard(dataset, policy="off") is dataset
    assert (tfdist.shard(dataset) is dataset) == (world == 1)


@pytest.mark.ranks(2, 3)
def test_shuffle_without_a_seed_is_warned_about(world, warnings_of_tfdist):
    tf.random.set_seed(None)
    tfdist.shard(tf.data.Dataset.range(100).shuffle(100).batch(2))
    assert_warned(warnings_of_tfdist, ".shuffle(100, seed=1)")


@pytest.mark.ranks(2, 3)
def test_global_seed_that_differs_by_rank_is_warned_about(world, warnings_of_tfdist):
    tf.random.set_seed(tfdist.rank() + 1)
    tfdist.shard(tf.data.Dataset.range(100).shuffle(100, seed=3).batch(2))
    assert_warned(warnings_of_tfdist, "set_random_seed")


@pytest.mark.ranks(2, 3)
def test_own_seed_that_differs_by_rank_is_warned_about(world, warnings_of_tfdist):
    tf.random.set_seed(7)
    tfdist.shard(tf.data.Dataset.range(100).shuffle(100, seed=tfdist.rank()).batch(2))
    assert_warned(warnings_of_tfdist, "a different seed on each rank: write .shuffle(100, seed=1)")


@pytest.mark.ranks(2, 3)
def test_arrays_that_differ_are_warned_about(world, warnings_of_tfdist):
    generator = np.random.default_rng(tfdist.rank())
    tfdist.shard(generator.permutation(1000))
    assert_warned(warnings_of_tfdist, "random_state")


@pytest.mark.ranks(2, 3)
def test_differences_are_the_same_error_on_every_rank(world):
    last = tfdist.rank() == world - 1
    with pytest.raises(ConfigError, match=r"number of elements or rows .*rank 0: 8, rank 1"):
        tfdist.shard(np.arange(9 if last else 8))
    with pytest.raises(ConfigError, match=r"different remainder .*rank 0: 'drop'"):
        tfdist.shard(np.arange(8), remainder="pad" if last else "drop")
    with pytest.raises(ConfigError, match="different data"):
        tfdist.shard(np.arange(8) if last else tf.data.Dataset.range(8))
    with pytest.raises(ConfigError, match=f"{world} are needed"):
        tfdist.shard(np.arange(world - 1))


PARTS = {
    "global_batch": lambda: tfdist.shard(tf.data.Dataset.range(8), global_batch=4).prefetch(1),
    "dataset": lambda: tfdist.shard(tf.data.Dataset.range(8)).batch(2),
    "array": lambda: tfdist.shard(np.arange(8)),
    "arrays": lambda: tfdist.shard((np.arange(8), {"y": np.arange(8.0)}))[1],
    "tensor": lambda: tfdist.shard(tf.range(8), remainder="pad"),
}


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("kind", PARTS)
def test_what_is_a_part_already_is_refused(world, kind):
    part = PARTS[kind]()
    assert tfdist.shard(part, policy="off") is part
    if world == 1 and kind != "global_batch":  # returned unchanged, so that it is the whole
        assert tfdist.shard(part) is part
        return
    for arguments in ({}, {"remainder": "join"}, {"policy": "data"}):
        with pytest.raises(ConfigError, match=r"has sharded already.*remove the other call"):
            tfdist.shard(part, **arguments)
    if kind.startswith("arr"):
        with pytest.raises(ConfigError, match="has sharded already"):
            tfdist.shard(part, global_batch=2)


# Pipelines of scripts for Horovod, to which `tfdist.shard` was added.
OWN_SHARDS = {
    "elements": (lambda data: data.shuffle(8, seed=1).shard(tfdist.size(), tfdist.rank()).batch(2), {}),
    "before_a_map": (lambda data: data.shard(tfdist.size(), tfdist.rank()).map(lambda x: x + 1).prefetch(1), {}),
    "files": (lambda data: data.shard(tfdist.size(), tfdist.rank()).interleave(lambda x: tf.data.Dataset.range(4)), {}),
    "global_batch": (lambda data: data.shard(tfdist.size(), tfdist.rank()), {"global_batch": 4}),
    "by_file": (lambda data: data.shard(tfdist.size(), tfdist.rank()).repeat(), {"policy": "file"}),
}


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("kind", OWN_SHARDS)
def test_pipeline_that_shards_by_rank_is_refused(world, kind):
    make, arguments = OWN_SHARDS[kind]
    with pytest.raises(ConfigError, match=rf"has a \.shard\({world}, rank\) of its own.*Remove \.shard"):
        tfdist.shard(make(tf.data.Dataset.range(24)), **arguments)


@pytest.mark.ranks(1, 2)
def test_other_splits_of_a_pipeline_are_taken(world):
    """Half of the data for training, on each rank the same; and a script for Horovod on one rank."""
    half = tf.data.Dataset.range(8).shard(2, 0)
    assert sum(parts_of(tfdist.shard(half)), []) == ([0, 2, 4, 6] if world == 1 else [0, 4, 2, 6])
    if world == 1:
        whole = tf.data.Dataset.range(8).shard(tfdist.size(), tfdist.rank())
        assert sum(parts_of(tfdist.shard(whole, global_batch=8)), []) == [list(range(8))]


@pytest.fixture
def file_pattern(shared_tmp_path):
    """Five files with as many records as their number and three more; a record is `file-record`."""
    if tfdist.rank() == 0:
        for file in range(5):
            with tf.io.TFRecordWriter(str(shared_tmp_path / f"{file}.tfrecord")) as writer:
                for record in range(3 + file):
                    writer.write(f"{file}-{record}".encode())
    tfdist.barrier(name="files are written")
    return str(shared_tmp_path / "*.tfrecord")


@pytest.mark.ranks(2, 3)
def test_files_are_dealt_out(world, file_pattern, warnings_of_tfdist):
    tf.random.set_seed(None)
    names = tf.data.Dataset.list_files(file_pattern)
    records = names.interleave(tf.data.TFRecordDataset).shuffle(10).repeat().batch(2, drop_remainder=True)
    mine = tfdist.shard(records, policy="file")
    files = {record.decode()[0] for batch in mine.take(30) for record in batch.numpy()}
    everybody = tfdist.allgather_object(sorted(files))
    assert sorted(sum(everybody, [])) == ["0", "1", "2", "3", "4"]
    assert warnings_of_tfdist == []


@pytest.mark.ranks(2, 3)
def test_files_that_cannot_be_sharded_are_refused_everywhere(world, file_pattern):
    names = sorted(tf.io.gfile.glob(file_pattern))
    refused = {
        r"end the dataset with \.repeat\(\)": tf.data.TFRecordDataset(names).batch(2),
        "drop_remainder=True": tf.data.TFRecordDataset(names).batch(2).repeat(),
        r"only has 1 file\(s\)|fewer files": tf.data.TFRecordDataset(names[:1]).repeat().batch(2),
        "does not read files": tf.data.Dataset.range(8).repeat(),
    }
    for text, dataset in refused.items():
        with pytest.raises(ConfigError, match=text):
            tfdist.shard(dataset, policy="file")


def from_service(shared, endless=False):
    """A dataset that says of itself that it reads from a data service, with steps behind it."""
    numbers = tf.data.Dataset.range(3)
    numbers._tfdist_watch = types.SimpleNamespace(service="host:1", shared=shared, endless=endless)
    return data_service.measure_wait(numbers.prefetch(1))


@pytest.mark.ranks(2, 3)
def test_what_a_data_service_deals_out_is_left_as_it_is():
    dataset, endless = from_service(shared=True), from_service(shared=True, endless=True)
    for given, remainder in ((dataset, "join"), (endless, "drop")):
        part = tfdist.shard(given, remainder=remainder)
        assert list(part.as_numpy_iterator()) == [0, 1, 2]
        assert (mark.of(part), mark.of(given)) == ({remainder}, set())


@pytest.mark.ranks(2)
def test_shard_of_what_a_data_service_deals_out_is_refused(world):
    with pytest.raises(ConfigError, match="of its own"):
        tfdist.shard(from_service(shared=True).shard(world, tfdist.rank()), remainder="join")


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("shared", "arguments", "text"),
    [
        (False, {"remainder": "join"}, "Pass the same job_name to `distribute`"),
        (True, {}, "or use remainder='join'"),
        (True, {"remainder": "join", "policy": "file"}, "Received policy='file'"),
    ],
)
def test_a_pass_that_cannot_be_shared_out_is_refused(shared, arguments, text):
    with pytest.raises(ConfigError, match=text):
        tfdist.shard(from_service(shared), **arguments)
