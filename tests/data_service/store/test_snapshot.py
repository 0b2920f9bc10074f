"""Snapshots: what is saved is loaded, in order, by workers too; what is cut off or damaged is never taken for whole."""

import collections
import json
import os
import signal
import subprocess
import sys

import pytest
import tensorflow as tf

from tfdist import data_service
from tfdist.data_service import load, save
from tfdist.errors import ConfigError

ELEMENTS = 23


def samples(count=ELEMENTS):
    """Numbers, strings and rows of different length."""
    return tf.data.Dataset.range(count).map(
        lambda i: {
            "id": i,
            "text": tf.strings.as_string(i),
            "row": tf.RaggedTensor.from_row_lengths([i, i], [i % 3, 2 - i % 3]),
        }
    )


def described(dataset):
    return [(int(e["id"]), e["text"].numpy(), e["row"].to_list()) for e in dataset]


def only_shard(folder):
    return next(folder.glob("*/*.shard/*.snapshot"))


@pytest.mark.parametrize("compression", ["", "GZIP", "SNAPPY"])
@pytest.mark.parametrize("shards", [1, 3, 50])
def test_what_is_saved_is_loaded_in_order(tmp_path, shards, compression):
    save(samples(), tmp_path / "snapshot", shards=shards, compression=compression)
    dataset = load(tmp_path / "snapshot")
    assert dataset.element_spec == samples().element_spec
    assert dataset.cardinality() == ELEMENTS
    assert described(dataset) == described(samples())
    assert len(list((tmp_path / "snapshot").glob("*/*.shard"))) == min(shards, ELEMENTS)
    assert os.listdir(tmp_path) == ["snapshot"]


def test_order_by_shards_reads_one_file_after_the_other(tmp_path):
    save(tf.data.Dataset.range(7), tmp_path / "snapshot", shards=3)
    assert [int(e) for e in load(tmp_path / "snapshot", order="shards")] == [0, 3, 6, 1, 4, 2, 5]


def test_workers_share_the_files(tmp_path):
    with data_service.Dispatcher(data_service.DispatcherConfig()) as dispatcher:
        config = data_service.WorkerConfig(dispatcher.address)
        with data_service.Worker(config), data_service.Worker(config):
            save(data_service.distribute(tf.data.Dataset.range(ELEMENTS), dispatcher.address), tmp_path / "s", shards=5)
            loaded = data_service.distribute(load(tmp_path / "s", order="shards"), dispatcher.address)
            assert collections.Counter(int(e) for e in loaded) == collections.Counter(range(ELEMENTS))


SAVE = """
import sys, tensorflow as tf
from tfdist.data_service import save
def element(i):
    tf.print("element", i, output_stream=sys.stdout)
    return i
save(tf.data.Dataset.range(10**6).map(element), sys.argv[1])
"""


def test_a_save_that_is_killed_leaves_nothing_that_loads(tmp_path, wait_until):
    path = tmp_path / "snapshot"
    with subprocess.Popen(
        [sys.executable, "-c", SAVE, str(path)], stdout=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    ) as saving:
        assert b"element" in saving.stdout.readline()
        wait_until(lambda: list(tmp_path.glob(".snapshot.partial-*/*/*.shard")), what="the first file")
        saving.send_signal(signal.SIGKILL)
    with pytest.raises(ConfigError, match=r"it is being saved, or saving was interrupted \(\.snapshot\.partial-"):
        load(path)
    save(tf.data.Dataset.range(3), path)
    assert [int(e) for e in load(path)] == [0, 1, 2]


@pytest.mark.parametrize("good", [0, 1, 50])
@pytest.mark.parametrize("shards", [1, 4])
def test_a_save_of_a_dataset_that_fails_ends_and_leaves_nothing(tmp_path, good, shards):
    """TensorFlow's own would hang if it fails after the first element."""
    failing = tf.data.Dataset.range(100).map(lambda i: tf.ensure_shape(tf.zeros([(i + 1) // (good + 1)]), [0]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="not compatible with expected shape"):
        save(failing, tmp_path / "snapshot", shards=shards)
    assert os.listdir(tmp_path) == []


def test_a_generator_that_raises(tmp_path):
    def rows():
        yield 1
        yield 2
        raise LookupError("row 3")

    with pytest.raises(tf.errors.OpError, match="row 3"):
        save(tf.data.Dataset.from_generator(rows, output_signature=tf.TensorSpec([], tf.int64)), tmp_path / "snapshot")
    assert os.listdir(tmp_path) == []


def damage(folder, how):
    shard = only_shard(folder)
    if how == "cut":
        os.truncate(shard, shard.stat().st_size - 1)
    elif how == "missing":
        shard.unlink()
    elif how == "format":
        manifest = json.loads((folder / "tfdist_snapshot.json").read_text())
        (folder / "tfdist_snapshot.json").write_text(json.dumps({**manifest, "format": 9}))
    else:
        (folder / "tfdist_snapshot.json").write_text("{" if how == "manifest" else "[]")


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("cut", r"is damaged: .*\.snapshot has \d+ bytes; expected \d+"),
        ("missing", r"is damaged: .*\.snapshot is missing"),
        ("manifest", r"tfdist_snapshot\.json cannot be read"),
        ("list", r"tfdist_snapshot\.json cannot be read"),
        ("format", "has format 9; this tfdist reads format 1"),
    ],
)
def test_a_damaged_snapshot_is_refused(tmp_path, how, text):
    save(samples(), tmp_path / "snapshot")
    damage(tmp_path / "snapshot", how)
    with pytest.raises(ConfigError, match=text):
        load(tmp_path / "snapshot")


def test_what_tensorflow_saved_is_not_taken_for_complete(tmp_path):
    samples().save(str(tmp_path / "snapshot"))
    with pytest.raises(ConfigError, match="not a complete snapshot of"):
        load(tmp_path / "snapshot")
    with pytest.raises(ConfigError, match="nothing is there"):
        load(tmp_path / "other")
    with pytest.raises(ConfigError, match="already exists"):
        save(samples(), tmp_path / "snapshot")


@pytest.mark.parametrize(
    ("dataset", "options", "text"),
    [
        (tf.data.Dataset.range(3).repeat(), {}, "endless"),
        (tf.data.Dataset.range(0), {}, "no elements"),
        (tf.data.Dataset.range(3), {"shards": 0}, "shards must be 1 or more"),
        (tf.data.Dataset.range(3), {"compression": "ZIP"}, "compression must be one of"),
        ([1, 2], {}, "dataset must be a tf.data.Dataset; received list"),
        (tf.data.Dataset.from_tensors(tf.zeros([1000])).repeat(10**12), {}, r"save will take 4e\+03 TB"),
    ],
)
def test_what_cannot_be_saved_is_refused(tmp_path, dataset, options, text):
    with pytest.raises(ConfigError, match=text):
        save(dataset, tmp_path / "snapshot", **options)
    assert os.listdir(tmp_path) == []


def test_order_must_be_known(tmp_path):
    with pytest.raises(ConfigError, match=r"order must be one of .*received 'any'"):
        load(tmp_path, order="any")
