"""Objects that are found, and read as files; Parquet in a store has the rows of Parquet on a disk."""

import io
import subprocess
import sys
import uuid

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from s3 import BUCKET

from tfdist import data_service
from tfdist.data_service import from_images, from_parquet
from tfdist.errors import ConfigError, StoreError
from tfdist.storage import reading
from tfdist.storage.reading import StoreFile
from tfdist.storage.store import Store

assert tf  # it knows ram://
ROWS, GROUPS, COLUMNS = 4000, 4, 10


@pytest.fixture(params=["s3", "gs", "memory", "ram"])
def folder(request, tmp_path):
    """With the objects 0.parquet to 2.parquet, of other sizes, and one of another kind."""
    place = f"{request.param}://{uuid.uuid4().hex}/data"
    if request.param in ("s3", "gs"):
        place = request.getfixturevalue({"s3": "s3", "gs": "gcs"}[request.param]).folder()
    store = Store(place)
    for name, size in (("0.parquet", 1000), ("1.parquet", 2000), ("2.parquet", 0), ("notes.txt", 5)):
        (tmp_path / name).write_bytes(np.random.default_rng(size).bytes(size))
        store.put(tmp_path / name, name)
    return place


def test_found_by_name_folder_and_pattern(folder):
    names = [f"{folder}/{number}.parquet" for number in range(3)]
    assert reading.find(names[1], ".parquet") == [names[1]]
    assert reading.find(folder, ".parquet") == names
    assert reading.find(folder + "/", ".parquet") == names
    assert reading.find(f"{folder}/[01].parquet", ".x") == names[:2]
    assert reading.find(f"{folder}/*.txt", ".x") == [f"{folder}/notes.txt"]
    parent, _, last = folder.rpartition("/")
    assert reading.find(f"{parent}/{last[:-1]}*/1.parquet", "") == [names[1]]
    assert reading.find(f"{folder}/none.parquet", ".parquet") == []
    assert reading.find(f"{folder}/none-*.parquet", ".parquet") == []


def test_a_bucket_is_a_folder(s3):
    s3.put(f"s3://{BUCKET}/of-the-bucket.parquet", b"x")
    for address in (f"s3://{BUCKET}", f"s3://{BUCKET}/"):
        assert reading.find(address, ".parquet") == [f"s3://{BUCKET}/of-the-bucket.parquet"]


@pytest.mark.parametrize("name", ["1.parquet", "2.parquet"])
def test_a_file_like_any_other(folder, tmp_path, name):
    data = (tmp_path / name).read_bytes()
    with StoreFile(f"{folder}/{name}") as file, io.BytesIO(data) as expected:
        for action in (
            lambda each: each.read(10),
            lambda each: each.seek(-7, io.SEEK_END) if data else 0,
            lambda each: each.read(100),
            lambda each: (each.seek(3), each.tell(), each.read(0)),
            lambda each: each.seek(2, io.SEEK_CUR),
            lambda each: each.readinto(bytearray(20)),
            lambda each: each.read(),
            lambda each: each.read(1),
        ):
            assert action(file) == action(expected)
        assert file.size == len(data)


def test_an_object_that_is_not_there_or_was_replaced(s3):
    place = s3.folder()
    with pytest.raises(StoreError, match=rf"{place}/x is not there"):
        StoreFile(f"{place}/x")
    s3.put(f"{place}/x", b"0123456789")
    file = StoreFile(f"{place}/x")
    s3.put(f"{place}/x", b"0123")
    with pytest.raises(StoreError):
        file.read()


@pytest.fixture
def tables(s3, tmp_path):
    """Two files in a store and on the disk, each of several row groups; the address and the path."""
    place, columns = s3.folder(), [f"c{number}" for number in range(COLUMNS)]
    generator = np.random.default_rng(3)
    for number in range(2):
        values = {name: generator.normal(size=ROWS).astype("float32") for name in columns}
        table = pa.table({"id": np.arange(ROWS) + number * ROWS, **values})
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=ROWS // GROUPS)
        s3.put(f"{place}/{number}.parquet", (tmp_path / f"{number}.parquet").read_bytes())
    s3.calm()
    return place, tmp_path


def rows(dataset):
    return [{name: value.tolist() for name, value in batch.items()} for batch in dataset.as_numpy_iterator()]


@pytest.mark.parametrize("options", [{}, {"shuffle": 3, "seed": 5}, {"columns": ["c3", "id"], "drop_remainder": True}])
def test_rows_of_a_store_are_those_of_a_disk(tables, options):
    place, folder = tables
    for given in ("", "/*.parquet", "/1.parquet"):
        assert rows(from_parquet(place + given, batch_size=300, **options)) == rows(
            from_parquet(str(folder) + given, batch_size=300, **options)
        )


WORKER = """
import sys
from tfdist import data_service
with data_service.Worker(data_service.WorkerConfig(sys.argv[1])) as worker:
    print(worker.address, flush=True)
    sys.stdin.read()
"""


def test_a_worker_reads_the_store_by_itself(tables):
    dataset = from_parquet(tables[0], ["id", "c1"], batch_size=500)
    with data_service.Dispatcher(data_service.DispatcherConfig()) as dispatcher:
        command = [sys.executable, "-c", WORKER, dispatcher.address]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdout.readline().strip()
            served = rows(data_service.distribute(dataset, dispatcher.address))
            worker.communicate(timeout=60)
    assert sorted(number for batch in served for number in batch["id"]) == list(range(2 * ROWS))


def test_only_the_bytes_of_the_columns_are_read(s3, tmp_path):
    """Two of ten columns; the footer once for the plan, and once more at most by whoever reads."""
    place, path, generator = s3.folder(), tmp_path / "large.parquet", np.random.default_rng(3)
    columns = {f"c{number}": generator.normal(size=25 * ROWS).astype("float32") for number in range(COLUMNS)}
    pq.write_table(pa.table(columns), path, row_group_size=25 * ROWS // GROUPS)
    s3.put(f"{place}/large.parquet", path.read_bytes())
    s3.calm()
    read = list(from_parquet(place, ["c3", "c7"], batch_size=ROWS).as_numpy_iterator())
    for name in ("c3", "c7"):
        np.testing.assert_array_equal(np.concatenate([batch[name] for batch in read]), columns[name])
    size = path.stat().st_size
    assert 0.2 * size < s3.sent_bytes <= 0.3 * size
    assert len(s3.requests) <= 5 * (GROUPS + 1)


def test_nothing_there(s3):
    place = s3.folder()
    for given in (place, f"{place}/x.parquet", f"{place}/*.parquet"):
        with pytest.raises(ConfigError, match=r"found no files for 's3://.*: (there is no such object|nothing match)"):
            from_parquet(given, batch_size=1)


def test_a_folder_with_others(s3):
    place = s3.folder()
    for name in "abcd":
        s3.put(f"{place}/{name}.txt", b"x")
    with pytest.raises(
        ConfigError, match=r"no file that ends in \.parquet, but 4 other names \(a\.txt, b\.txt, c\.txt, \.\.\.\)"
    ):
        from_parquet(place, batch_size=1)


@pytest.mark.parametrize("given", ["", "/folder", "/folder/x.parquet", "/*.parquet"])
def test_no_such_bucket(s3, given):
    for read in (
        lambda place: from_parquet(place, batch_size=1),
        lambda place: from_images(place, (4, 6), batch_size=1),
    ):
        with pytest.raises(StoreError, match=r"s3://nobody-has (is not there|first)"):
            read(f"s3://nobody-has{given}")


def test_not_parquet(s3):
    place = s3.folder()
    s3.put(f"{place}/x.parquet", b"something else" * 10)
    with pytest.raises(ConfigError, match=rf"{place}/x\.parquet is not a readable Parquet file"):
        from_parquet(place, batch_size=1)


def test_wrong_key(s3, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(StoreError, match="Check the credentials of this process"):
        from_parquet(s3.folder(), batch_size=1)


def test_an_object_that_is_replaced_in_the_middle(s3, tables):
    place, folder = tables
    iterator = iter(from_parquet(place, batch_size=100))
    next(iterator)
    pq.write_table(pa.table({"id": [1]}), folder / "other.parquet")
    for number in range(2):
        s3.put(f"{place}/{number}.parquet", (folder / "other.parquet").read_bytes())
    with pytest.raises(tf.errors.OpError, match=r"has changed|has been replaced|could not read"):
        list(iterator)


def test_an_object_that_is_replaced_by_one_of_the_same_size(s3, tmp_path):
    """Its footer is asked for again, since the store tells that it is another object."""
    place = s3.folder()
    for numbers in ([1, 2], [3, 4]):
        pq.write_table(pa.table({"x": numbers}), tmp_path / "x.parquet", use_dictionary=False, compression="none")
        size = (tmp_path / "x.parquet").stat().st_size
        s3.put(f"{place}/x.parquet", (tmp_path / "x.parquet").read_bytes())
        if numbers == [1, 2]:
            dataset, before = from_parquet(place, batch_size=1), size
    assert size == before
    with pytest.raises(tf.errors.OpError, match="has changed: row group 0 has other contents"):
        list(dataset)
