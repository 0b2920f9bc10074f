"""Records and images of a store are those of a disk, in any order, in a service and with hardly any room for copies."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tfdist import data_service
from tfdist.data_service import from_images, from_tfrecord
from tfdist.data_service.source import store_file
from tfdist.errors import ConfigError, StoreError
from tfdist.input import pipeline

FEATURES = {"id": tf.io.FixedLenFeature([], tf.int64)}
FILES, RECORDS = 6, 20


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """No copies of another test; a third of the files fits."""
    store_file._cache.cache_clear()
    monkeypatch.setenv("TFDIST_STORE_CACHE", "2000")


def example(number):
    feature = {"id": tf.train.Feature(int64_list=tf.train.Int64List(value=[number]))}
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


def records(s3, folder, compression=""):
    """Files of records on the disk, and the same in a store; returns the address."""
    place = s3.folder()
    for file in range(FILES):
        path = folder / f"{file}.tfrecord"
        with tf.io.TFRecordWriter(str(path), compression) as writer:
            for number in range(RECORDS):
                writer.write(example(file * RECORDS + number))
        s3.put(f"{place}/{file}.tfrecord", path.read_bytes())
    return place


def images(s3, folder):
    place = s3.folder()
    for number in range(12):
        name = f"{('apple', 'pear', 'plum')[number % 3]}/{'deeper/' if number == 4 else ''}{number}.png"
        image = tf.cast(tf.fill([4, 6, 3], number), tf.uint8)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(tf.io.encode_png(image).numpy())
        s3.put(f"{place}/{name}", (folder / name).read_bytes())
    s3.put(f"{place}/apple/notes.txt", b"no image")
    s3.put(f"{place}/notes.txt", b"no class")
    s3.put(f"{place}/.hidden/1.png", b"no class")
    return place


def ids(dataset):
    return [int(number) for batch in dataset for number in batch["id"]]


@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB"])
@pytest.mark.parametrize("options", [{}, {"shuffle": 7, "seed": 5}])
def test_records_are_those_of_a_disk(s3, tmp_path, compression, options):
    place = records(s3, tmp_path, compression)
    for given in ("", "/*.tfrecord", "/1.tfrecord"):
        of_store, of_disk = (
            from_tfrecord(each, FEATURES, batch_size=7, compression=compression, **options)
            for each in (place + given, str(tmp_path) + given)
        )
        for _ in range(2):
            assert ids(of_store) == ids(of_disk)


def test_files_of_the_disk_and_of_a_store_together(s3, tmp_path):
    place = records(s3, tmp_path)
    mixed = from_tfrecord([f"{place}/0.tfrecord", tmp_path / "1.tfrecord"], FEATURES, batch_size=5)
    here = from_tfrecord([tmp_path / "0.tfrecord", tmp_path / "1.tfrecord"], FEATURES, batch_size=5)
    assert ids(mixed) == ids(here)
    assert all((tmp_path / f"{file}.tfrecord").exists() for file in range(FILES)), "a file of the user is no copy"


def test_a_second_pass_asks_the_store_for_nothing(s3, tmp_path, monkeypatch):
    monkeypatch.setenv("TFDIST_STORE_CACHE", "1000000")
    of_records = from_tfrecord(records(s3, tmp_path), FEATURES, batch_size=7)
    (tmp_path / "flowers").mkdir()
    of_images = from_images(images(s3, tmp_path / "flowers"), (4, 6), batch_size=5)
    ids(of_records)
    list(of_images)
    s3.calm()
    assert len(ids(of_records)) == FILES * RECORDS
    assert sum(len(labels) for _, labels in of_images) == 12
    assert s3.requests == []


def test_one_small_read_finds_the_first_record(s3, tmp_path):
    place = records(s3, tmp_path)
    s3.calm()
    from_tfrecord(f"{place}/0.tfrecord", FEATURES, batch_size=1)
    assert s3.sent_bytes < 4000 and len(s3.requests) <= 4


def test_a_first_record_larger_than_what_is_read_of_a_file(s3, tmp_path, monkeypatch):
    monkeypatch.setattr("tfdist.data_service.source.tfrecord._FIRST_BYTES", 5)
    assert ids(from_tfrecord(records(s3, tmp_path), FEATURES, batch_size=60))


def test_an_empty_file(s3, tmp_path):
    place = records(s3, tmp_path)
    s3.put(f"{place}/0.tfrecord", b"")
    assert sorted(ids(from_tfrecord(place, FEATURES, batch_size=7))) == list(range(RECORDS, FILES * RECORDS))


@pytest.mark.parametrize("options", [{}, {"shuffle": 5, "seed": 3}])
def test_images_are_those_of_a_disk(s3, tmp_path, options):
    place = images(s3, tmp_path)
    (tmp_path / "notes.txt").touch()
    of_store, of_disk = (from_images(each, (4, 6), batch_size=5, **options) for each in (place, tmp_path))
    assert of_store.class_names == of_disk.class_names == ["apple", "pear", "plum"]
    assert of_store.element_spec == of_disk.element_spec
    for _ in range(2):
        for (image, label), (other, of_other) in zip(of_store, of_disk, strict=True):
            np.testing.assert_array_equal(image, other)
            np.testing.assert_array_equal(label, of_other)


WORKER = """
import sys
from tfdist import data_service
with data_service.Worker(data_service.WorkerConfig(sys.argv[1])) as worker:
    print(worker.address, flush=True)
    sys.stdin.read()
"""


def test_workers_read_the_store_by_themselves(s3, tmp_path):
    (tmp_path / "flowers").mkdir()
    of_records = from_tfrecord(records(s3, tmp_path), FEATURES, batch_size=7)
    of_images = from_images(images(s3, tmp_path / "flowers"), (4, 6), batch_size=5)
    with data_service.Dispatcher(data_service.DispatcherConfig()) as dispatcher:
        command = [sys.executable, "-c", WORKER, dispatcher.address]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdout.readline().strip()
            served = ids(data_service.distribute(of_records, dispatcher.address))
            seen = [image for batch, _ in data_service.distribute(of_images, dispatcher.address) for image in batch]
            worker.communicate(timeout=60)
    assert sorted(served) == list(range(FILES * RECORDS))
    assert sorted(int(image[0, 0, 0]) for image in seen) == list(range(12))


def test_passes_that_are_given_up(s3, tmp_path):
    dataset = from_tfrecord(records(s3, tmp_path), FEATURES, batch_size=7)
    for _ in range(5):
        assert len(ids(dataset.take(2))) == 14
    assert len(ids(dataset)) == FILES * RECORDS


def test_an_object_that_goes_in_the_middle(s3, tmp_path):
    place = records(s3, tmp_path)
    dataset = from_tfrecord(place, FEATURES, batch_size=7)
    s3.client().delete_object(Bucket=place.split("/")[2], Key=f"{place.split('/')[3]}/5.tfrecord")
    with pytest.raises(tf.errors.OpError, match=r"could not read 5\.tfrecord from .*Check the name"):
        ids(dataset)


def test_a_store_that_dies_in_the_middle(s3, tmp_path):
    dataset = from_images(images(s3, tmp_path), (4, 6), batch_size=5)
    s3.disturb = lambda number, method, path: "forbid"
    with pytest.raises(tf.errors.OpError, match=r"StoreError: could not read .*png from s3://.*Check the credentials"):
        list(dataset)


def test_nothing_there(s3, tmp_path):
    place = s3.folder()
    with pytest.raises(ConfigError, match=r"from_tfrecord: found no files for 's3://"):
        from_tfrecord(place, FEATURES, batch_size=1)
    with pytest.raises(ConfigError, match=rf"from_images: {place} has no subfolders"):
        from_images(place, (4, 6), batch_size=1)
    s3.put(f"{place}/apple/notes.txt", b"x")
    with pytest.raises(ConfigError, match=rf"from_images: {place}/apple contains no file that ends in"):
        from_images(place, (4, 6), batch_size=1)


def test_no_records(s3):
    place = s3.folder()
    s3.put(f"{place}/x.tfrecord", b"something else" * 10)
    with pytest.raises(ConfigError, match=rf"{place}/x\.tfrecord is not a TFRecord file"):
        from_tfrecord(place, FEATURES, batch_size=1)


def test_wrong_key(s3, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(StoreError, match="Check the credentials of this process"):
        from_tfrecord(s3.folder(), FEATURES, batch_size=1)
    with pytest.raises(StoreError, match="Check the credentials of this process"):
        from_images(s3.folder(), (4, 6), batch_size=1)


@pytest.mark.parametrize("rank", [0, 1])
def test_shards_of_files(s3, tmp_path, rank):
    of_store = from_tfrecord(records(s3, tmp_path), FEATURES, batch_size=RECORDS)
    of_disk = from_tfrecord(tmp_path, FEATURES, batch_size=RECORDS)
    mine = ids(pipeline.shard_files(of_store, 2, rank))
    assert mine == ids(pipeline.shard_files(of_disk, 2, rank)) and len(mine) == FILES * RECORDS // 2
