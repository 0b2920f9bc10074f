"""Files that grow: what changes reaches the store now and then and at the end, whole, and failures are told once."""

import os
import tempfile
import threading
import uuid

import pytest

from tfdist.errors import ConfigError, StoreError
from tfdist.storage import store
from tfdist.storage.mirror import Mirror

NEVER_S = 1e6


@pytest.fixture(autouse=True)
def temporary(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


@pytest.fixture
def place(s3):
    place = s3.folder()
    s3.calm()
    return place


def write(mirror, name, text):
    path = mirror.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(text)


def puts(s3):
    return sorted(path.rpartition("/")[2] for method, path in s3.requests if method == "PUT")


def test_what_has_changed_is_uploaded(s3, place):
    mirror = Mirror(place, NEVER_S)
    write(mirror, "run.0.json", "[1,")
    write(mirror, "rank.0/stdout", "a\n")
    mirror.upload()
    assert s3.objects(place) == {"run.0.json": b"[1,", "rank.0/stdout": b"a\n"}
    s3.calm()
    mirror.upload()
    write(mirror, "run.0.json", "2]")
    mirror.upload()
    assert puts(s3) == ["run.0.json"]
    assert s3.objects(place)["run.0.json"] == b"[1,2]"


def test_now_and_then_and_at_the_end(s3, place, wait_until, temporary):
    mirror = Mirror(place, 0.1)
    write(mirror, "log.csv", "1\n")
    wait_until(lambda: s3.objects(place).get("log.csv") == b"1\n", seconds=20, what="the first upload")
    write(mirror, "log.csv", "2\n")
    wait_until(lambda: s3.objects(place).get("log.csv") == b"1\n2\n", seconds=20, what="the second upload")
    write(mirror, "log.csv", "3\n")
    mirror.close()
    assert s3.objects(place) == {"log.csv": b"1\n2\n3\n"}
    assert not list(temporary.iterdir())


def test_a_failure_is_told_once_in_a_row(s3, place):
    told = []
    mirror = Mirror(place, NEVER_S, told.append)
    write(mirror, "log.csv", "1\n")
    for _ in range(2):
        s3.disturb = lambda number, method, path: "forbid"
        mirror.upload()
        mirror.upload()
        s3.calm()
        mirror.upload()
        assert s3.objects(place)["log.csv"]
        write(mirror, "log.csv", "2\n")
    assert len(told) == 2
    assert told[0].startswith("log.csv is not uploaded: could not write log.csv to s3://")
    assert "Check the credentials" in told[0] and "tried again every 1e+06 s (TFDIST_UPLOAD_SECONDS)" in told[0]


def test_a_store_that_cannot_be_written_is_told_at_once(s3, monkeypatch, temporary):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(StoreError, match="Check the credentials"):
        Mirror(s3.folder(), NEVER_S)
    with pytest.raises(ConfigError, match="nothing that is installed knows abc://"):
        Mirror("abc://x/y", NEVER_S)
    assert not list(temporary.iterdir())


def test_what_cannot_be_uploaded_at_the_end_is_kept(s3, place, temporary):
    told = []
    mirror = Mirror(place, NEVER_S, told.append)
    write(mirror, "log.csv", "1\n")
    s3.disturb = lambda number, method, path: "forbid"
    mirror.close()
    (kept,) = temporary.iterdir()
    assert (kept / "log.csv").read_text() == "1\n"
    assert told[-1].startswith(
        f"the last upload to {place} has failed, the files are in {kept}: could not write log.csv"
    )
    os.utime(kept, (0, 0))
    s3.calm()
    Mirror(place, NEVER_S).close()
    assert list(temporary.iterdir()) == [kept], "no later process removes it"


def test_an_older_state_does_not_arrive_after_the_last_one(s3, place):
    """An upload is under way when the interpreter ends: it would replace what the other process has put there."""
    begun, over = threading.Event(), threading.Event()

    def hold(number, method, path):
        if method == "PUT" and "log.csv" in path and not begun.is_set():
            begun.set()
            over.wait(4)  # longer than the other process takes if it does not wait for this

    mirror = Mirror(place, NEVER_S)
    write(mirror, "log.csv", "1\n")
    s3.disturb = hold
    thread = threading.Thread(target=mirror.upload)
    thread.start()
    assert begun.wait(20)
    write(mirror, "log.csv", "2\n")
    mirror.close_at_exit()
    thread.join()
    assert s3.objects(place) == {"log.csv": b"1\n2\n"}


def test_an_older_state_that_was_given_up(monkeypatch, tmp_path, temporary):
    """It may still arrive while the process ends, so what is newer is kept where it is."""
    told, free = [], threading.Event()
    mirror = Mirror(f"memory://{uuid.uuid4().hex}/run", NEVER_S, told.append)
    monkeypatch.setattr(mirror._store._files, "put", lambda *_: free.wait(60))
    monkeypatch.setattr(store, "OPERATION_S", 0.3)
    monkeypatch.setattr(store, "CHECK_S", 0.3)
    write(mirror, "log.csv", "1\n")
    try:
        mirror.upload()
        write(mirror, "log.csv", "2\n")
        mirror.close_at_exit()
    finally:
        free.set()
    (kept,) = temporary.iterdir()
    assert (kept / "log.csv").read_text() == "1\n2\n"
    assert "no answer within 0.3 s" in told[0]
    assert f"the files are in {kept}: could not write log.csv to memory://" in told[1]
    assert "an earlier operation on it has had no answer" in told[1]
