"""The old file or the new one, never a piece."""

import contextlib
import errno
import os
import resource
import types
from pathlib import Path

import pytest

from tfdist.system.atomic_file import need_folder, need_room, write_atomically


def test_makes_and_replaces(tmp_path):
    path = tmp_path / "a" / "b" / "file.txt"
    write_atomically(path, lambda temporary: temporary.write_text("one"))
    write_atomically(str(path), lambda temporary: temporary.write_text("two"))
    assert path.read_text() == "two"
    assert os.listdir(path.parent) == ["file.txt"]


def test_the_temporary_file_is_beside_it_and_ends_alike(tmp_path):
    """A rename is atomic within one file system only; writers choose a format by the ending."""
    seen = []

    def write(temporary):
        seen.append(temporary)
        temporary.write_text("x")

    write_atomically(tmp_path / "model.weights.h5", write)
    assert seen[0].parent == tmp_path
    assert seen[0].name.endswith(".weights.h5")


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_leaves_the_old_file(tmp_path, error):
    path = tmp_path / "file"
    path.write_text("old")

    def write(temporary):
        temporary.write_text("half")
        raise error

    with pytest.raises(type(error)):
        write_atomically(path, write)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_both_are_on_the_disk_before_the_name_is(tmp_path, monkeypatch):
    order = []
    real_sync, real_replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: (order.append("sync"), real_sync(descriptor)))
    monkeypatch.setattr(os, "replace", lambda a, b: (order.append("replace"), real_replace(a, b)))
    write_atomically(tmp_path / "file", lambda temporary: temporary.write_text("x"))
    assert order == ["sync", "replace", "sync"]


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(IsADirectoryError, match="is a folder"):
        write_atomically(tmp_path, lambda temporary: temporary.write_text("x"))


def test_a_folder_is_made_and_left_empty(tmp_path):
    for _ in range(2):
        need_folder(tmp_path / "a" / "b")
    assert os.listdir(tmp_path / "a" / "b") == []


@pytest.mark.parametrize("path", ["file", "file/folder", "/proc/folder"])
def test_a_folder_that_cannot_be_made(tmp_path, path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError):
        need_folder(tmp_path / path)


@pytest.mark.parametrize(("number", "is_told"), [(errno.ENOSPC, False), (errno.EDQUOT, False), (errno.EROFS, True)])
def test_a_folder_that_has_no_room(tmp_path, monkeypatch, number, is_told):
    """Room may come before it is needed."""

    def fails(**arguments):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("tempfile.TemporaryFile", fails)
    with pytest.raises(OSError) if is_told else contextlib.nullcontext():
        need_folder(tmp_path)


def test_room_for_a_file(tmp_path, monkeypatch):
    need_room(tmp_path / "file", 1000)
    assert (tmp_path / "file").stat().st_size == 1000
    need_room(tmp_path / "file", 10_000_000)
    assert (tmp_path / "file").stat().st_size < 100_000
    with pytest.raises(OSError, match="No space left"):
        need_room(tmp_path / "file", 1 << 60)
    monkeypatch.setattr("shutil.disk_usage", lambda path: types.SimpleNamespace(total=0, free=0))
    need_room(tmp_path / "file", 1 << 60)  # a file system that does not tell its size


def test_a_limit_of_file_sizes(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            need_room(tmp_path / "file", 5001)
        need_room(tmp_path / "file", 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_room_on_what_is_always_full():
    with pytest.raises(OSError, match="No space left"):
        need_room(Path("/dev/full"), 1000)
