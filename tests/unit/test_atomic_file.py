"""The old file or the new one, never a piece."""

import os

import pytest

from tfdist.atomic_file import write_atomically


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
