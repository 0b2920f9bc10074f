"""Files that are read whole or not at all."""

import hashlib

import numpy as np
import pytest

from tfdist.callbacks import snapshot
from tfdist.callbacks.snapshot import Position, SnapshotError

ARRAYS = {"weight/0": np.arange(6, dtype="float32").reshape(2, 3), "own/0": np.array([1, 2], "int64"), "n": np.array(3)}


def test_what_is_written_is_read(tmp_path):
    path = snapshot.write(tmp_path, Position(2, 7), ARRAYS, keep=2)
    read = snapshot.read(path)
    assert set(read) == set(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(read[name], array)
        assert read[name].dtype == array.dtype
    assert snapshot.position_of(path) == Position(2, 7)


def test_the_newest_are_kept(tmp_path):
    """By place in training, not by name: epoch 10 comes after epoch 9, batch 100 after batch 99."""
    for position in (Position(9, 0), Position(9, 99), Position(9, 100), Position(10, 0)):
        snapshot.write(tmp_path, position, ARRAYS, keep=2)
    assert [snapshot.position_of(path) for path in snapshot.list_newest_first(tmp_path)] == [
        Position(10, 0),
        Position(9, 100),
    ]


def test_other_files_are_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "other.snapshot").write_text("mine")
    for epoch in range(3):
        snapshot.write(tmp_path, Position(epoch, 0), ARRAYS, keep=1)
    assert {"notes.txt", "other.snapshot"} < {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize("position", range(0, 200, 20))
def test_a_changed_byte_is_noticed(tmp_path, position):
    path = snapshot.write(tmp_path, Position(0, 0), ARRAYS, keep=1)
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    with pytest.raises(SnapshotError):
        snapshot.read(path)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_a_torn_file_is_noticed_and_the_one_before_it_used(tmp_path, share):
    older = snapshot.write(tmp_path, Position(0, 0), ARRAYS, keep=2)
    newer = snapshot.write(tmp_path, Position(1, 0), ARRAYS, keep=2)
    data = newer.read_bytes()
    newer.write_bytes(data[: int(len(data) * share)])
    position, arrays, skipped = snapshot.newest_valid(tmp_path)
    assert position == snapshot.position_of(older)
    assert set(arrays) == set(ARRAYS)
    assert len(skipped) == 1
    assert newer.name in skipped[0]


def test_nothing_there(tmp_path):
    assert snapshot.newest_valid(tmp_path) is None
    assert snapshot.newest_valid(tmp_path / "missing") is None


def test_nothing_whole(tmp_path):
    path = snapshot.write(tmp_path, Position(0, 0), ARRAYS, keep=1)
    path.write_bytes(b"junk")
    with pytest.raises(SnapshotError, match="does not begin like a snapshot"):
        snapshot.newest_valid(tmp_path)


def test_a_pickle_is_refused(tmp_path):
    """An archive of objects could run code when it is read."""
    path = snapshot.write(tmp_path, Position(0, 0), {"object": np.array([{"a": 1}], dtype=object)}, keep=1)
    with pytest.raises(SnapshotError, match="cannot be decoded"):
        snapshot.read(path)


def test_contents_that_cannot_be_decoded_are_skipped(tmp_path):
    """The checksum fits, as after a write by another version: the older file is used."""
    older = snapshot.write(tmp_path, Position(0, 0), ARRAYS, keep=2)
    newer = snapshot.write(tmp_path, Position(1, 0), ARRAYS, keep=2)
    junk = b"no archive"
    newer.write_bytes(b"tfdist snapshot 1 %s %d\n" % (hashlib.sha256(junk).hexdigest().encode(), len(junk)) + junk)
    position, _, skipped = snapshot.newest_valid(tmp_path)
    assert position == snapshot.position_of(older)
    assert "cannot be decoded" in skipped[0]
