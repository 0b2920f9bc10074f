"""The store of an Estimator: on a disk, and in an object store."""

import uuid

import pytest

from tfdist.errors import ConfigError
from tfdist.spark import store as place
from tfdist.spark.store import LocalStore, Store


@pytest.mark.parametrize("kind", ["disk", "objects"])
def test_files(tmp_path, kind):
    store = Store.create(tmp_path / "store" if kind == "disk" else f"memory://{uuid.uuid4().hex}/store/")
    path = f"{store.get_train_data_path()}/mine/part"
    assert not store.exists(path)
    (tmp_path / "file").write_bytes(b"rows")
    place.put(tmp_path / "file", path)
    assert store.exists(path) and store.read(path) == b"rows"
    place.remove(f"{store.get_train_data_path()}/mine")
    assert not store.exists(path)
    place.remove(f"{store.get_train_data_path()}/mine")


@pytest.mark.parametrize("kind", ["disk", "objects"])
def test_nothing_is_added_after_the_removal(tmp_path, kind):
    store = Store.create(tmp_path / "store" if kind == "disk" else f"memory://{uuid.uuid4().hex}/store")
    folder = f"{store.get_train_data_path()}/mine"
    (tmp_path / "file").write_bytes(b"rows")
    place.open_folder(folder)
    place.add(tmp_path / "file", f"{folder}/part")
    assert store.read(f"{folder}/part") == b"rows"
    place.remove(folder)
    assert not store.exists(f"{folder}/part")
    with pytest.raises(FileNotFoundError):
        place.add(tmp_path / "file", f"{folder}/part")
    assert not store.exists(f"{folder}/part")


def test_a_part_that_is_left_is_told(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()

    def vanish(folder):
        raise FileNotFoundError(f"{folder}/part")

    monkeypatch.setattr("shutil.rmtree", vanish)
    with pytest.raises(FileNotFoundError, match="mine/part"):
        place.remove(str(tmp_path / "mine"))


def test_places(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Store("here").get_runs_path() == f"{tmp_path}/here/runs", "executors have other folders"
    assert LocalStore("dbfs:/mine").get_val_data_path() == "/dbfs/mine/intermediate_val_data"
    store = Store("S3://bucket/folder/", train_path="/fast/train", runs_path="gs://other/runs", save_runs=False)
    assert store.get_checkpoint_path("one") == "gs://other/runs/one/checkpoint.keras"
    assert store.get_logs_path("one") == "gs://other/runs/one/logs"
    assert (store.get_train_data_path(), store.saving_runs()) == ("/fast/train", False)
    assert store.get_val_data_path() == "s3://bucket/folder/intermediate_val_data"
    with pytest.raises(ConfigError, match="prefix_path must be a path or an address"):
        Store("")
