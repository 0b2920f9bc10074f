"""Files that are read whole or not at all."""

import contextlib
import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.callbacks.store import snapshot
from tfdist.callbacks.store.snapshot import SNAPSHOT, Position
from tfdist.storage import shelf
from tfdist.system import atomic_file, whole_file
from tfdist.system.whole_file import DamagedFileError

ARRAYS = {"weight/0": np.arange(6, dtype="float32").reshape(2, 3), "own/0": np.array([1, 2], "int64"), "n": np.array(3)}


def write(folder, position, arrays, keep):
    return Path(snapshot.write(snapshot.open_shelf(folder, "folder"), position, arrays, keep))


def newest_valid(folder):
    return snapshot.newest_valid(snapshot.open_shelf(folder, "folder"))


def test_what_is_written_is_read(tmp_path):
    path = write(tmp_path, Position(2, 7), ARRAYS, keep=2)
    read = snapshot.decode(path.read_bytes())
    assert set(read) == set(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(read[name], array)
        assert read[name].dtype == array.dtype
    assert SNAPSHOT.newest_first(tmp_path) == [whole_file.NumberedFile(Position(2, 7), path)]


def test_the_newest_are_kept(tmp_path):
    """By place in training, not by name: epoch 10 comes after epoch 9, batch 100 after batch 99."""
    for position in (Position(9, 0), Position(9, 99), Position(9, 100), Position(10, 0)):
        write(tmp_path, position, ARRAYS, keep=2)
    assert [file.numbers for file in SNAPSHOT.newest_first(tmp_path)] == [Position(10, 0), Position(9, 100)]


def test_other_files_are_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "other.snapshot").write_text("mine")
    for epoch in range(3):
        write(tmp_path, Position(epoch, 0), ARRAYS, keep=1)
    assert {"notes.txt", "other.snapshot"} < {path.name for path in tmp_path.iterdir()}


@pytest.fixture
def damaged(tmp_path):
    """Asserts that a damaged newest file is skipped, that it is said which and why, and that the one before is used."""
    write(tmp_path, Position(0, 0), ARRAYS, keep=2)
    newer = write(tmp_path, Position(1, 0), ARRAYS, keep=2)
    data = newer.read_bytes()

    def check(change, reason=""):
        newer.write_bytes(change(bytearray(data)))
        position, arrays, (line,) = newest_valid(tmp_path)
        assert position == Position(0, 0)
        assert set(arrays) == set(ARRAYS)
        assert line.startswith(f"{newer} is skipped: it")
        assert reason in line

    return data, check


def flipped(data, place, bit):
    data[place] ^= 1 << bit
    return data


def test_every_length_of_a_torn_file(damaged):
    data, check = damaged
    header = data.index(b"\n") + 1
    for length in range(len(data)):
        reason = "begin like a snapshot" if length < header else f" has {length - header} bytes of {len(data) - header}"
        check(lambda whole, most=length: whole[:most], reason)
    check(lambda whole: whole + b"\0", f" has {len(data) - header + 1} bytes of {len(data) - header}")


def test_flipped_bits_of_the_header_and_a_sample_of_the_rest(damaged):
    data, check = damaged
    header = data.index(b"\n") + 1
    for place in [*range(header), *range(header, len(data), 7)]:
        for bit in range(8):
            reason = "checksum does not match" if place >= header else ""
            check(lambda whole, at=place, which=bit: flipped(whole, at, which), reason)


def test_a_write_that_is_killed_anywhere(killed_everywhere, tmp_path):
    """The two files before it are whole and used, or the new one is; what was begun is not seen, and removed later."""

    def prepare(folder):
        for epoch in range(2):
            write(folder, Position(epoch, 0), ARRAYS, keep=2)

    def check(folder):
        position, arrays, skipped = newest_valid(folder)
        assert position in (Position(1, 0), Position(2, 0))
        assert set(arrays) == set(ARRAYS) and skipped == []
        SNAPSHOT.remove_unfinished(folder)
        assert len(list(folder.iterdir())) == len(SNAPSHOT.newest_first(folder)) in (2, 3)
        seen.add((position.epoch, len(list(folder.iterdir()))))

    seen = set()
    size = write(tmp_path, Position(0, 0), ARRAYS, keep=2).stat().st_size
    kills = killed_everywhere(
        prepare,
        lambda folder: write(folder, Position(2, 0), ARRAYS, keep=2),
        check,
        (snapshot, shelf, whole_file, atomic_file),
        range(0, size, 53),
    )
    assert kills > 25
    assert seen == {(1, 2), (2, 3), (2, 2)}


def test_nothing_there(tmp_path):
    assert newest_valid(tmp_path) is None
    assert newest_valid(tmp_path / "missing") is None


def test_nothing_whole(tmp_path):
    path = write(tmp_path, Position(0, 0), ARRAYS, keep=1)
    path.write_bytes(b"junk")
    with pytest.raises(DamagedFileError, match="does not begin like a snapshot"):
        newest_valid(tmp_path)


def test_a_pickle_is_refused(tmp_path):
    """An archive of objects could run code when it is read."""
    path = write(tmp_path, Position(0, 0), {"object": np.array([{"a": 1}], dtype=object)}, keep=1)
    with pytest.raises(DamagedFileError, match="cannot be decoded"):
        snapshot.decode(path.read_bytes())


def test_contents_that_cannot_be_decoded_are_skipped(tmp_path):
    """The checksum fits, as after a write by another version: the older file is used."""
    write(tmp_path, Position(0, 0), ARRAYS, keep=2)
    newer = write(tmp_path, Position(1, 0), ARRAYS, keep=2)
    junk = b"no archive"
    newer.write_bytes(signed(junk))
    position, _, skipped = newest_valid(tmp_path)
    assert position == Position(0, 0)
    assert "cannot be decoded" in skipped[0]


@pytest.mark.parametrize(
    "payload",
    [b"", b"PK\x05\x06" + bytes(18), b"PK\x03\x04" + bytes(100), b"\x93NUMPY\x01\x00", b"\x93NUMPY\x01\x00\xff\xff{}"],
)
def test_contents_that_only_look_like_an_archive(tmp_path, payload):
    path = tmp_path / "epoch-000000-batch-000000000.snapshot"
    path.write_bytes(signed(payload))
    with contextlib.suppress(DamagedFileError):
        assert snapshot.decode(path.read_bytes()) == {}


@given(payload=st.binary(max_size=200), head=st.sampled_from([b"", b"PK\x03\x04", b"PK\x05\x06", b"\x93NUMPY\x01\x00"]))
def test_any_contents_are_arrays_or_an_error_that_says_so(tmp_path_factory, payload, head):
    path = tmp_path_factory.mktemp("any") / "epoch-000000-batch-000000000.snapshot"
    path.write_bytes(signed(head + payload))
    with contextlib.suppress(DamagedFileError):
        assert isinstance(snapshot.decode(path.read_bytes()), dict)


def signed(payload):
    """With the header that fits it."""
    return b"tfdist snapshot 1 %s %d\n" % (hashlib.sha256(payload).hexdigest().encode(), len(payload)) + payload
