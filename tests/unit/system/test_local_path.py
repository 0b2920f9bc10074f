"""Paths of this machine, and every place that would otherwise make a folder of the name of a store."""

from pathlib import Path

import pytest

from tfdist import config
from tfdist.data_service.server.config import DispatcherConfig, WorkerConfig
from tfdist.data_service.source import file_list
from tfdist.errors import ConfigError
from tfdist.launch.run import console
from tfdist.observe import stack_dump
from tfdist.system.atomic_file import write_atomically
from tfdist.system.local_path import address_of, local_path

ADDRESSES = ("gs://bucket/run", "s3://bucket/run", "hdfs://name:9000/run", "HTTPS://host/run", "file://host/run")


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_is_refused(address):
    scheme = address.partition("://")[0].lower()
    with pytest.raises(ConfigError, match=rf"backup_dir must be a path on a disk .*; {scheme}:// is neither.*received"):
        local_path(address, "backup_dir")


@pytest.mark.parametrize("given", [Path("gs://bucket/run"), "gs:/bucket/run"])
def test_one_slash_less_is_refused(given):
    with pytest.raises(ConfigError, match="gs:// is neither"):
        local_path(given, "backup_dir")


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("s3://bucket/run", "s3://bucket/run"),
        ("S3://Bucket/Run", "s3://Bucket/Run"),
        ("s3:/bucket/run", "s3://bucket/run"),
        (Path("hdfs://name:9000/run"), "hdfs://name:9000/run"),
        ("file:///run", None),
        ("own:/run", None),
        ("run", None),
    ],
)
def test_address(given, address):
    assert address_of(given) == address


def test_what_else_can_be_done_is_named():
    with pytest.raises(ConfigError, match=r"to the store, or mount it; received 'gs://b'"):
        local_path("gs://b", "path", "mount it")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("run/1", "run/1"),
        ("/data/a b", "/data/a b"),
        ("file:///data/run", "/data/run"),
        ("file://localhost/data", "/data"),
        ("c:/run", "c:/run"),
        ("time 10:30//x", "time 10:30/x"),
        (Path("own:/x"), "own:/x"),
        ("", "."),
    ],
)
def test_a_path_of_this_machine(given, expected):
    assert local_path(given, "path") == Path(expected)


def _cache(path):
    from tfdist.data_service.store import cache

    cache.cache(None, path)


PLACES = {
    "atomic file": lambda path: write_atomically(path, lambda file: file.write_text("x")),
    "--output-filename": lambda path: console._files(path, range(1), 1),
    "stack dump": stack_dump.install,
    "dispatcher": lambda path: DispatcherConfig(work_dir=path),
    "worker": lambda path: WorkerConfig(dispatcher="localhost:5050", work_dir=path),
    "from_io": lambda path: file_list.find("from_io", [path], ".orc"),
    "cache": _cache,
    **{
        variable: lambda path, variable=variable: config.read({variable: path})
        for variable in (
            "TFDIST_STACK_DUMP_DIR",
            "TFDIST_AUTOTUNE_RESULT",
        )
    },
}


@pytest.mark.parametrize("place", PLACES)
def test_each_place_refuses_a_store(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="gs:// is neither"):
        PLACES[place]("gs://bucket/run")
    assert not list(tmp_path.iterdir())
