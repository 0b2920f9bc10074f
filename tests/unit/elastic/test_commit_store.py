"""Tests of tfdist.elastic.commit_store: commits that are whole, and those that are not."""

import resource
import struct
import zlib

import ml_dtypes
import numpy as np
import pytest

from tfdist.elastic import commit_store
from tfdist.elastic.commit_store import CommitStore
from tfdist.errors import ConfigError


@pytest.fixture
def store(tmp_path):
    tmp_path.chmod(0o700)
    return CommitStore(tmp_path)


def content(number):
    return {
        "values": {"epoch": number, "text": "x" * number},
        "variables": [np.full((3, 2), number, "float32"), np.asfortranarray(np.ones((2, 3))), np.zeros((), "int64")],
        "halves": np.arange(5).astype(ml_dtypes.bfloat16),
    }


def same(one, other):
    assert one["values"] == other["values"]
    for left, right in zip([*one["variables"], one["halves"]], [*other["variables"], other["halves"]], strict=True):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def test_nothing_yet(store):
    assert store.newest(0) is None


def test_the_newest_is_read_and_two_are_kept(store, tmp_path):
    for number in (8, 9, 10, 11):
        store.put(3, number, content(number))
    number, found = store.newest(3)
    assert number == 11
    same(found, content(11))
    assert files(tmp_path) == ["3-10.commit", "3-11.commit", "3.spare"]


def test_a_smaller_commit_takes_the_file_of_a_larger_one(store):
    for number, size in ((1, 1000), (2, 1000), (3, 1000), (4, 10), (5, 2000)):
        store.put(0, number, np.arange(size))
        found = store.newest(0)
        assert found[0] == number
        np.testing.assert_array_equal(found[1], np.arange(size))


def test_trainings_are_apart(store):
    store.put(0, 5, content(5))
    store.put(1, 2, content(2))
    assert store.newest(0)[0] == 5 and store.newest(1)[0] == 2 and store.newest(2) is None


def test_what_was_read_can_be_written_to(store):
    store.put(0, 1, content(1))
    store.newest(0)[1]["values"]["epoch"] = 7
    assert store.newest(0)[1]["values"]["epoch"] == 1


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    folder.chmod(0o700)
    CommitStore(folder).put(0, 2, content(2))
    return (folder / "0-2.commit").read_bytes()


def signed(payload):
    """With the header that fits it."""
    return b"tfdist commit 1 %08x %d\n" % (zlib.crc32(payload), len(payload)) + payload


def passed_over(folder, data, caplog):
    """What is read where the newest file has this data, with the reason that is told."""
    folder.chmod(0o700)
    store = CommitStore(folder)
    store.put(0, 1, content(1))
    (folder / "0-2.commit").write_bytes(data)
    caplog.clear()
    number, found = store.newest(0)
    assert number == 1
    same(found, content(1))
    (told,) = caplog.messages
    assert told.startswith(f"tfdist: commit {folder / '0-2.commit'} is skipped: ")
    return told


def test_every_length_of_a_torn_file(whole, tmp_path, caplog):
    header = whole.index(b"\n") + 1
    for length in range(len(whole)):
        told = passed_over(tmp_path, whole[:length], caplog)
        torn = f"it has {length - header} bytes of {len(whole) - header}"
        assert ("it does not begin like a commit" if length < header else torn) in told


def test_flipped_bits_of_the_header_and_a_sample_of_the_rest(whole, tmp_path, caplog):
    header = whole.index(b"\n") + 1
    for place in [*range(header), *range(header, len(whole), 7)]:
        for bit in range(8):
            data = bytearray(whole)
            data[place] ^= 1 << bit
            told = passed_over(tmp_path, data, caplog)
            assert place < header or "its checksum does not match its contents" in told


def test_a_write_that_is_killed_anywhere(whole, killed_everywhere, caplog):
    """The two commits before it are whole and the newest is used, or the new one is; the next one is written."""

    def prepare(folder):
        for number in (1, 2, 3):
            CommitStore(folder).put(0, number, content(2))

    def check(folder):
        number, found = CommitStore(folder).newest(0)
        assert number in (3, 4)
        same(found, content(2))
        seen.add(number)
        CommitStore(folder).put(0, 5, content(2))
        assert CommitStore(folder).newest(0)[0] == 5

    seen = set()
    kills = killed_everywhere(
        prepare,
        lambda folder: CommitStore(folder).put(0, 4, content(2)),
        check,
        (commit_store,),
        range(0, len(whole), 17),
    )
    assert kills > 15
    assert seen == {3, 4}
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: b"", "does not begin like a commit"),
        (lambda data: b"\0" * len(data), "does not begin like a commit"),
        (lambda data: data[:10], "does not begin like a commit"),
        (lambda data: data[:-1], "bytes of"),
        (lambda data: data + b"x", "bytes of"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "checksum"),
        (lambda data: signed(b""), "it has 0 bytes but an invalid number of parts: 0"),
        (lambda data: signed(bytes(7)), "it has 7 bytes but an invalid number of parts: 0"),
        (lambda data: signed(b"\xff" * 24), "it has 24 bytes but an invalid number of parts: 18446744073709551615"),
        (lambda data: signed(struct.pack("!3Q", 1, 2, 0)), "it has 24 bytes, but its parts add up to 18"),
        (lambda data: signed(struct.pack("!2Q2s", 1, 2, b"no")), "its contents cannot be decoded: UnpicklingError"),
        (lambda data: signed(struct.pack("!2Q", 1, 0)), "its contents cannot be decoded: EOFError"),
    ],
)
def test_a_damaged_file(whole, tmp_path, caplog, change, reason):
    assert reason in passed_over(tmp_path, change(whole), caplog)


def test_all_are_damaged(store, tmp_path, caplog):
    store.put(0, 1, content(1))
    (tmp_path / "0-1.commit").write_bytes(b"no")
    assert store.newest(0) is None
    assert len(caplog.messages) == 1


def test_damaged_commits_are_removed_from_memory_only(tmp_path):
    """Else they would pass for the last two, and those that come be removed at once."""
    memory, disk = tmp_path / "memory", tmp_path / "disk"
    for folder in (memory, disk):
        folder.mkdir(mode=0o700)
        (folder / "0-7.commit").write_bytes(b"no")
    (memory / "0-8.commit").write_bytes(b"tfdist commit 1 00000000 9\nxx")
    store = CommitStore(memory, disk)
    assert store.newest(0) is None
    assert store.remove_damaged() == [
        f"{memory / '0-8.commit'}: it has 2 bytes of 9",
        f"{memory / '0-7.commit'}: it does not begin like a commit 1",
        f"{disk / '0-7.commit'}: it does not begin like a commit 1",
    ]
    assert store.remove_damaged() == []
    store.put(0, 1, content(1))
    assert store.newest(0)[0] == 1
    assert files(memory) == ["0-1.commit"] and files(disk) == ["0-7.commit"]


def test_other_files_are_left_alone(store, tmp_path):
    (tmp_path / "0-x.commit").write_bytes(b"")
    (tmp_path / "leave-1").touch()
    assert store.newest(0) is None
    for number in (1, 2, 3):
        store.put(0, number, content(number))
    assert files(tmp_path) == ["0-2.commit", "0-3.commit", "0-x.commit", "0.spare", "leave-1"]


def test_what_a_killed_process_has_begun_is_not_seen(store, tmp_path):
    store.put(0, 1, content(1))
    (tmp_path / "0.spare").write_bytes((tmp_path / "0-1.commit").read_bytes()[:-10])
    assert store.newest(0)[0] == 1
    store.put(0, 2, content(2))
    same(store.newest(0)[1], content(2))


def test_without_room_the_last_two_stay(store, tmp_path):
    for number in (1, 2, 3):
        store.put(0, number, content(number))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            store.put(0, 4, np.zeros(1 << 16))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert files(tmp_path) == ["0-2.commit", "0-3.commit"]
    assert store.newest(0)[0] == 3


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o702])
def test_folder_that_others_reach(tmp_path, mode):
    tmp_path.chmod(mode)
    with pytest.raises(ConfigError, match=rf"can be read by others .*mode {mode:o}"):
        CommitStore(tmp_path)


def test_one_on_a_disk_is_read_where_memory_has_none(tmp_path, caplog):
    memory, disk = tmp_path / "memory", tmp_path / "disk"
    for folder in (memory, disk):
        folder.mkdir(mode=0o700)
    CommitStore(disk).put(0, 5, content(5))
    CommitStore(disk).put(1, 6, content(6))
    store = CommitStore(memory, disk)
    store.put(0, 2, content(2))
    assert store.newest(0)[0] == 2
    assert not caplog.records
    assert store.newest(1)[0] == 6
    assert caplog.messages == [f"tfdist: continuing from {disk / '1-6.commit'}"]
    assert CommitStore(memory, tmp_path / "none").newest(1) is None


def test_folder_on_a_disk_that_others_may_write_to(tmp_path):
    memory, disk = tmp_path / "memory", tmp_path / "disk"
    memory.mkdir(mode=0o700)
    disk.mkdir()
    disk.chmod(0o755)
    CommitStore(memory, disk)
    disk.chmod(0o775)
    with pytest.raises(ConfigError, match=r"disk holds commits .* can be written by others .*mode 775.* chmod go-w"):
        CommitStore(memory, disk)
