"""A snapshot in a store has the elements of one on a disk, whole or not at all, also in the workers of a service."""

import collections
import itertools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import tensorflow as tf

from tfdist import data_service
from tfdist.data_service import load, save
from tfdist.data_service.source import store_file
from tfdist.errors import ConfigError, StoreError

ELEMENTS = 23
MANIFEST = "tfdist_snapshot.json"


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path_factory):
    """No copies of another test, and a temporary folder that only this test fills."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))
    store_file._cache.cache_clear()


def samples(count=ELEMENTS):
    """Numbers, and rows of different length."""
    return tf.data.Dataset.range(count).map(lambda i: (i, tf.RaggedTensor.from_row_lengths([i, i], [i % 3, 2 - i % 3])))


def described(dataset):
    return [(int(number), row.to_list()) for number, row in dataset]


def manifest(s3, place):
    return json.loads(s3.objects(place)[MANIFEST])


@pytest.mark.parametrize(("shards", "compression"), [(1, "GZIP"), (3, "SNAPPY"), (50, "")])
def test_what_is_saved_is_loaded_in_order(s3, shards, compression):
    place = f"{s3.folder()}/train"
    save(samples(), place, shards=shards, compression=compression)
    assert list(Path(tempfile.gettempdir()).glob("tfdist-*")) == []
    dataset = load(place)
    assert dataset.element_spec == samples().element_spec
    assert dataset.cardinality() == ELEMENTS
    for _ in range(2):
        assert described(dataset) == described(samples())
    assert len(s3.objects(place)) == min(shards, ELEMENTS) + 3
    assert described(load(f"{place}/").take(3)) == described(samples(3))


def test_a_second_pass_asks_the_store_for_nothing(s3):
    place = s3.folder()
    save(samples(), place, shards=3)
    dataset = load(place)
    described(dataset)
    s3.calm()
    described(dataset)
    assert s3.requests == []


def test_hardly_any_room_for_copies(s3, monkeypatch):
    monkeypatch.setenv("TFDIST_STORE_CACHE", "1")
    place = s3.folder()
    save(samples(), place, shards=5)
    dataset = load(place)
    for _ in range(2):
        assert described(dataset) == described(samples())
    (copies,) = Path(tempfile.gettempdir()).glob("tfdist-*")
    assert list(copies.iterdir()) == []


WORKER = """
import sys
from tfdist import data_service
with data_service.Worker(data_service.WorkerConfig(sys.argv[1])) as worker:
    print(worker.address, flush=True)
    sys.stdin.read()
"""


def test_workers_make_and_read_it(s3):
    place = s3.folder()
    with data_service.Dispatcher(data_service.DispatcherConfig()) as dispatcher:
        command = [sys.executable, "-c", WORKER, dispatcher.address]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdout.readline().strip()
            save(data_service.distribute(tf.data.Dataset.range(ELEMENTS), dispatcher.address), place, shards=5)
            loaded = data_service.distribute(load(place, order="shards"), dispatcher.address)
            assert collections.Counter(int(e) for e in loaded) == collections.Counter(range(ELEMENTS))
            worker.communicate(timeout=60)


def test_a_copy_is_as_good(s3, tmp_path):
    here, there = tmp_path / "here", s3.folder()
    save(samples(), here, shards=3)
    for path in here.rglob("*"):
        if path.is_file():
            s3.put(f"{there}/{path.relative_to(here)}", path.read_bytes())
    assert described(load(there)) == described(samples())
    save(samples(), f"{there}-2", shards=3)
    for name, data in s3.objects(f"{there}-2").items():
        path = tmp_path / "back" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    assert described(load(tmp_path / "back")) == described(samples())


def test_a_save_that_is_killed_before_any_request(s3):
    """The store has what was done before, and nothing after it."""
    seen = []
    for number in itertools.count(1):
        place = s3.folder()
        s3.calm()
        s3.disturb = lambda now, *_, last=number: "forbid" if now >= last else None
        try:
            save(tf.data.Dataset.range(5), place, shards=2)
            killed = False
        except StoreError:
            killed = True
        s3.calm()
        names = s3.objects(place)
        if MANIFEST in names:
            seen.append("whole")
            assert [int(e) for e in load(place)] == list(range(5))
        else:
            seen.append("absent")
            reason = "saving was interrupted" if names else "nothing is there"
            with pytest.raises(ConfigError, match=rf"there is no snapshot at {place}: .*{reason}"):
                load(place)
            save(tf.data.Dataset.range(3), place)
            assert [int(e) for e in load(place)] == [0, 1, 2]
        if not killed:
            break
    assert number > 6 and {"absent", "whole"} == set(seen) == {"absent", seen[-1]}


def test_a_save_that_fails_leaves_nothing(s3):
    place = s3.folder()
    failing = tf.data.Dataset.range(3).map(lambda i: tf.ensure_shape(tf.zeros([i]), [1]))
    with pytest.raises(tf.errors.InvalidArgumentError):
        save(failing, place)
    s3.disturb = lambda number, method, path: "forbid" if method == "PUT" and path.endswith(MANIFEST) else None
    with pytest.raises(StoreError, match=rf"could not write {MANIFEST} to {place}"):
        save(samples(), place)
    s3.calm()
    assert s3.objects(place) == {}


def test_objects_of_another_kind(s3):
    place = s3.folder()
    s3.put(f"{place}/a.tfrecord", b"x")
    with pytest.raises(ConfigError, match=r"is not a complete snapshot of .* \(a\.tfrecord\)\. Check the name"):
        load(place)
    with pytest.raises(ConfigError, match=r"has other objects: a\.tfrecord\. Save under another name"):
        save(samples(), place)
    assert list(s3.objects(place)) == ["a.tfrecord"]


def test_two_at_a_time(s3):
    """The other one is there when this one ends."""
    place = s3.folder()

    def disturb(number, method, path):
        if method == "PUT" and path.endswith(".snapshot"):
            s3.calm()
            save(tf.data.Dataset.range(3), place)

    s3.disturb = disturb
    with pytest.raises(ConfigError, match="already has a snapshot"):
        save(samples(), place)
    assert [int(e) for e in load(place)] == [0, 1, 2]
    assert len(s3.objects(place)) == 4
    with pytest.raises(ConfigError, match="already has a snapshot"):
        save(samples(), place)


def test_damage(s3):
    place = s3.folder()
    save(samples(), place)
    (shard,) = manifest(s3, place)["shards"]
    data = s3.objects(place)[shard["file"]]
    s3.put(f"{place}/{shard['file']}", data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    with pytest.raises(tf.errors.OpError, match=rf"{shard['file']} is damaged: its checksum is"):
        described(load(place))
    s3.put(f"{place}/{shard['file']}", data[:-1])
    with pytest.raises(ConfigError, match=rf"the snapshot at {place} is damaged: {shard['file']} has \d+ bytes"):
        load(place)
    s3.client().delete_object(Bucket=place.split("/")[2], Key="/".join([*place.split("/")[3:], shard["file"]]))
    with pytest.raises(ConfigError, match="is missing"):
        load(place)
    s3.put(f"{place}/{MANIFEST}", b"{")
    with pytest.raises(ConfigError, match=rf"{MANIFEST} cannot be read"):
        load(place)


def never():
    """Fails if it is read."""
    return tf.data.Dataset.range(3).map(lambda i: tf.ensure_shape(tf.zeros([i]), [7]))


def test_a_place_is_tried_before_the_dataset_is_read(s3):
    with pytest.raises(StoreError, match="create s3://nobody-has first"):
        save(never(), "s3://nobody-has/train")
    with pytest.raises(ConfigError, match="nothing that is installed knows nonsense://"):
        save(never(), "nonsense://x/y")
    assert not Path("s3:").exists() and not Path("nonsense:").exists()


def test_wrong_key(s3, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(StoreError, match="Check the credentials"):
        save(never(), s3.folder())
    with pytest.raises(StoreError, match="Check the credentials"):
        load(s3.folder())


@pytest.mark.parametrize("scheme", ["memory", "gs"])
def test_other_stores(request, scheme):
    place = request.getfixturevalue("gcs").folder() if scheme == "gs" else f"memory://{tempfile.gettempdir()}/s"
    save(samples(), place, shards=3)
    assert described(load(place)) == described(samples())
