"""Numbered files of which the newest whole one is used: in a folder, and in a store."""

import hashlib
import itertools
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tfdist.errors import StoreError
from tfdist.storage import shelf as shelf_module
from tfdist.storage.shelf import open_shelf
from tfdist.system.whole_file import DamagedFileError, FileKind

KIND = FileKind("test 1", "epoch-%02d-batch-%02d.test", lambda parts: hashlib.sha256(b"".join(parts)).hexdigest())
WRITER = """
import sys
sys.path.insert(0, {folder!r})
from test_shelf import KIND, contents
from tfdist.storage.shelf import open_shelf
open_shelf({address!r}, KIND, "place").write((2, 0), contents(2), keep=2)
"""


def contents(number):
    return [memoryview(bytes([number]) * 1000), memoryview(b"end")]


def read(volume):
    return bytes(volume.read())


@pytest.fixture(params=["disk", "s3", "memory"])
def place(request, tmp_path):
    if request.param == "disk":
        return str(tmp_path / "run")
    return request.getfixturevalue("s3").folder() if request.param == "s3" else f"memory://{uuid.uuid4().hex}"


def test_the_newest_are_kept_by_number(place):
    shelf = open_shelf(place, KIND, "place")
    shelf.check()
    assert shelf.newest_first() == []
    for numbers in ((9, 0), (9, 9), (9, 10), (10, 0)):
        name = shelf.write(numbers, contents(numbers[1]), keep=2)
        assert name.startswith(f"{place}/epoch-{numbers[0]:02d}-batch-{numbers[1]:02d}.test")
    again = open_shelf(place, KIND, "place")
    again.check()
    found = again.newest_first()
    assert [volume.numbers for volume in found] == [(10, 0), (9, 10)]
    assert [read(volume) for volume in found] == [b"".join(contents(number)) for number in (0, 10)]
    again.clear()
    assert again.newest_first() == []


def test_a_listing_that_lags_behind(place, monkeypatch):
    shelf = open_shelf(place, KIND, "place")
    shelf.check()
    shelf.write((1, 0), contents(1), keep=2)
    if hasattr(shelf, "_store"):
        sizes = shelf._store.sizes
        monkeypatch.setattr(
            shelf._store, "sizes", lambda: {name: size for name, size in sizes().items() if not name.endswith(".json")}
        )
    shelf.tidy()
    monkeypatch.undo()
    (found,) = shelf.newest_first()
    assert read(found) == b"".join(contents(1))


def test_the_same_numbers_are_written_again(place):
    """A job was killed after this file, or while it was written, and another one comes to the same place."""
    shelf = open_shelf(place, KIND, "place")
    for number in (1, 2):
        shelf.write((3, 0), contents(number), keep=2)
    assert read(shelf.newest_first()[0]) == b"".join(contents(2))


def test_other_objects_are_left_alone(s3):
    place = s3.folder()
    others = ["notes.txt", "epoch-01-batch-00.test", "epoch-01-batch-00.test.zz", "below/epoch-01-batch-00.test.json"]
    for name in others:
        s3.put(f"{place}/{name}", b"mine")
    shelf = open_shelf(place, KIND, "place")
    shelf.check()
    for number in range(3):
        shelf.write((number, 0), contents(number), keep=1)
    shelf.clear()
    assert sorted(s3.objects(place)) == sorted(others)


def test_other_files_are_left_alone(tmp_path):
    """Such as a model that a callback has written into the folder of the backups."""
    others = [
        "model.keras",
        "epoch-01-batch-00.test.old",
        ".host.epoch-01-batch-00.test",
        "below/epoch-01-batch-00.test",
    ]
    for empty, names in ((False, others), (True, [])):
        folder = tmp_path / str(empty)
        for name in (*names, ".host.7.epoch-01-batch-00.test"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(b"mine")
        shelf = open_shelf(folder, KIND, "place")
        for number in range(3):
            shelf.write((number, 0), contents(number), keep=2)
        shelf.clear()
        shelf.clear()
        left = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
        assert sorted(left) == sorted(names)
        assert folder.exists() != empty


def test_folder_behind_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    shelf = open_shelf(tmp_path / "link", KIND, "place")
    shelf.write((1, 0), contents(1), keep=2)
    shelf.clear()
    assert list((tmp_path / "real").iterdir()) == []


def _killed(s3, place, number, before):
    """A process that writes is killed before or after a request of this number; whether there was one."""
    writer = subprocess.Popen([sys.executable, "-c", WRITER.format(folder=str(Path(__file__).parent), address=place)])

    def disturb(now, *_):
        if now == number:
            os.kill(writer.pid, signal.SIGKILL)
            return "drop" if before else "lose"
        return None

    s3.calm()
    s3.disturb = disturb
    ended = writer.wait(60)
    s3.calm()
    assert ended in (0, -signal.SIGKILL)
    return ended != 0


def test_a_writer_that_is_killed_at_any_request(s3):
    """The two files before it are whole and used, or the new one is; what was begun is not seen, and removed later."""
    seen = set()
    for number in itertools.count(1):
        kills = 0
        for before in (True, False):
            place = s3.folder()
            shelf = open_shelf(place, KIND, "place")
            for epoch in range(2):
                shelf.write((epoch, 0), contents(epoch), keep=2)
            killed = _killed(s3, place, number, before)
            kills += killed
            found = shelf.newest_first()
            assert [read(volume) for volume in found] == [b"".join(contents(each.numbers[0])) for each in found]
            assert len(found) >= 2
            seen.add((found[0].numbers[0], len(found), killed))
            shelf.check()
            names = s3.objects(place)
            objects = {name for name in names if not name.endswith(".json")}
            assert {f"{name}.json" for name in objects} <= names.keys()
        if not kills:
            break
    assert number > 4
    assert seen == {(1, 2, True), (2, 3, True), (2, 2, True), (2, 2, False)}


DAMAGES = {
    "half": (lambda data: data[: len(data) // 2], r"it has \d+ bytes of \d+"),
    "longer": (lambda data: data + b"x", r"it has \d+ bytes of \d+"),
    "flipped": (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "its checksum does not match that of its manifest"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_object(s3, damage):
    change, reason = DAMAGES[damage]
    place = s3.folder()
    shelf = open_shelf(place, KIND, "place")
    name = shelf.write((1, 0), contents(1), keep=2)
    s3.put(name, change(s3.objects(place)[name.rpartition("/")[2]]))
    with pytest.raises(DamagedFileError, match=reason):
        shelf.newest_first()[0].read()


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"3", b'{"bytes": "x", "sha256": ""}', b'{"bytes": 5}', b"\xff"])
def test_damaged_manifest(s3, text):
    shelf = open_shelf(s3.folder(), KIND, "place")
    s3.put(shelf.write((1, 0), contents(1), keep=2) + ".json", text)
    with pytest.raises(DamagedFileError, match="its manifest cannot be read: "):
        shelf.newest_first()[0].read()


def test_object_of_a_manifest_is_gone(s3):
    shelf = open_shelf(s3.folder(), KIND, "place")
    name = shelf.write((1, 0), contents(1), keep=2)
    shelf._store.remove(name.rpartition("/")[2])
    with pytest.raises(StoreError, match="could not read"):
        shelf.newest_first()[0].read()
    shelf.clear()


def test_a_failed_write_removes_nothing(s3):
    place = s3.folder()
    shelf = open_shelf(place, KIND, "place")
    for number in range(2):
        shelf.write((number, 0), contents(number), keep=2)
    s3.disturb = lambda number, method, path: "forbid" if method == "PUT" and path.endswith(".json") else None
    with pytest.raises(StoreError, match="could not write epoch-02"):
        shelf.write((2, 0), contents(2), keep=2)
    s3.calm()
    assert [volume.numbers for volume in shelf.newest_first()] == [(1, 0), (0, 0)]
    shelf.check()
    assert len(s3.objects(place)) == 4, "what was begun is removed"


def test_nothing_stays_on_the_disk(s3, monkeypatch, tmp_path):
    monkeypatch.setattr(shelf_module.tempfile, "tempdir", str(tmp_path))
    shelf = open_shelf(s3.folder(), KIND, "place")
    shelf.write((1, 0), contents(1), keep=2)
    read(shelf.newest_first()[0])
    assert list(tmp_path.iterdir()) == []
