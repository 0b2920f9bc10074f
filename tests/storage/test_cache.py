"""Copies of objects on the disk: each made once, within a bound, safe while they are read."""

import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from pathlib import Path

import pytest

from tfdist.errors import StoreError
from tfdist.storage.cache import Cache

SIZE = 1000


@pytest.fixture(autouse=True)
def temporary(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "disk"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk"


@pytest.fixture
def objects(s3):
    """Addresses of five objects of the same size, each of another byte."""
    place = s3.folder()
    for number in range(5):
        s3.put(f"{place}/{number}", contents(number))
    s3.calm()
    return [f"{place}/{number}" for number in range(5)]


def contents(number):
    return bytes([number]) * SIZE


def kept(disk):
    """How many bytes the copies take."""
    return sum({each.stat().st_ino: each.stat().st_size for each in disk.rglob("*") if each.is_file()}.values())


def downloads(s3):
    return sum(method == "GET" for method, path in s3.requests if "list-type" not in path)


def test_each_object_is_fetched_once(s3, objects):
    cache = Cache(10 * SIZE)
    for _ in range(3):
        assert [cache.read(each) for each in objects] == [contents(number) for number in range(5)]
        assert [cache.path(each).read_bytes() for each in objects] == [contents(number) for number in range(5)]
    assert downloads(s3) == len(objects)


def test_what_was_used_least_recently_goes_first(s3, objects, temporary):
    cache = Cache(3 * SIZE)
    for each in (*objects[:3], objects[0], objects[3]):  # 1 goes
        cache.read(each)
    assert kept(temporary) == 3 * SIZE
    s3.calm()
    for each in (objects[0], objects[2], objects[3]):
        cache.read(each)
    assert downloads(s3) == 0
    assert cache.read(objects[1]) == contents(1)
    assert (downloads(s3), kept(temporary)) == (1, 3 * SIZE)


def test_an_object_larger_than_the_bound(s3, objects, temporary):
    cache = Cache(SIZE - 1)
    for _ in range(2):
        assert cache.read(objects[0]) == contents(0)
    assert (downloads(s3), kept(temporary)) == (2, 0)


def test_a_file_stays_until_its_reader_is_done(objects, temporary):
    cache = Cache(SIZE)
    given = cache.path(objects[0])
    for each in objects[1:]:
        cache.read(each)
    assert given.read_bytes() == contents(0)
    assert kept(temporary) == 2 * SIZE
    cache.give_back(given)
    cache.give_back(given)
    assert kept(temporary) == SIZE


def test_files_of_readers_that_were_abandoned(objects, temporary):
    cache = Cache(SIZE)
    with cache.path(objects[0]).open("rb") as opened:
        for _ in range(600):
            cache.path(objects[0])
        assert 100 < len(list(temporary.rglob("*.given"))) < 300
        assert opened.read() == contents(0)


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 250])
def test_sizes_around_that_of_a_piece(s3, monkeypatch, size):
    monkeypatch.setattr("tfdist.storage.cache._PIECE_BYTES", 100)
    place, data = s3.folder(), os.urandom(size)
    s3.put(f"{place}/x", data)
    s3.calm()
    assert Cache(1000).read(f"{place}/x") == data
    assert len(s3.requests) == 1 or size in (0, 100, 101, 250)


def test_readers_at_the_same_time(s3, objects):
    cache, found = Cache(2 * SIZE), []

    def read(number):
        for turn in range(20):
            each = (number + turn) % 5
            found.append(cache.read(objects[each]) == contents(each))

    threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 160


def test_one_download_for_all_who_wait_for_it(s3, objects):
    begun, go_on = threading.Event(), threading.Event()

    def hold(number, method, path):
        if method == "GET":
            begun.set()
            assert go_on.wait(30)

    s3.disturb = hold
    cache, found = Cache(2 * SIZE), []
    threads = [threading.Thread(target=lambda: found.append(cache.read(objects[2]))) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert begun.wait(30)
    go_on.set()
    for thread in threads:
        thread.join()
    assert (found, downloads(s3)) == ([contents(2)] * 4, 1)


def test_a_download_that_fails_leaves_nothing(s3, objects, temporary):
    cache = Cache(10 * SIZE)
    s3.disturb = lambda number, method, path: "forbid" if method == "GET" else None
    with pytest.raises(StoreError, match="could not read 0 from"):
        cache.read(objects[0])
    assert kept(temporary) == 0
    s3.calm()
    assert cache.read(objects[0]) == contents(0)


def test_no_room_on_the_disk(objects, temporary):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE // 2, before[1]))
    try:
        with pytest.raises(StoreError, match=r"could not copy s3://.*/0 to .*File too large.*set TMPDIR to a larger"):
            Cache(10 * SIZE).read(objects[0])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert kept(temporary) == 0


OWNER = """
import os, signal, sys
from tfdist.storage.cache import Cache
import fsspec
fsspec.filesystem("memory").pipe("/folder/x", b"1234")
cache = Cache(100)
print(cache.path("memory://folder/x"), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("killed", [False, True])
def test_copies_go_with_their_process(objects, temporary, killed):
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    path = Path(owner.stdout.readline().strip())
    assert path.read_text() == "1234" and path.is_relative_to(temporary)
    if killed:
        owner.kill()
    owner.communicate(timeout=60)
    if killed:
        os.utime(path.parent, (0, 0))  # as if long ago: a young folder may not be locked yet
        Cache(SIZE).read(objects[0])
    assert not path.parent.exists()


def test_a_scheme_that_nobody_knows():
    with pytest.raises(ValueError, match="nothing that is installed knows abc://"):
        Cache(SIZE).read(f"abc://{uuid.uuid4().hex}/x")
