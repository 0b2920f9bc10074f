"""The newest commit of each training is kept in a store, whole, by a process of its own; the next job finds it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tfdist
from tfdist.callbacks.store import snapshot
from tfdist.elastic.commit_store import CommitStore
from tfdist.errors import StoreError
from tfdist.protocol import backup

PACKAGES = Path(tfdist.__file__).parents[1]


@pytest.fixture
def memory(tmp_path):
    """Commits as ranks write them: two of training 0, one of training 1."""
    folder = tmp_path / "memory"
    folder.mkdir(mode=0o700)
    commits = CommitStore(folder)
    commits.put(0, 1, "old")
    commits.put(0, 2, "new")
    commits.put(1, 7, "other")
    return folder


def kept(s3, place):
    """The commits that count: those with a manifest."""
    return sorted(re.sub(r"\.[0-9a-f]{24}\.json$", "", name) for name in s3.objects(place) if name.endswith(".json"))


def another(tmp_path, place):
    """A job that begins anew with this backup."""
    folder = tmp_path / "another"
    folder.mkdir(mode=0o700, exist_ok=True)
    return CommitStore(folder, place)


def test_the_newest_of_each_training(s3, memory, tmp_path):
    place = s3.folder()
    assert sorted(backup.keep(memory, place)) == ["0-2.commit", "1-7.commit"]
    assert kept(s3, place) == ["0-2.commit", "1-7.commit"]
    assert another(tmp_path, place).newest(0) == (2, "new")
    assert another(tmp_path, place).newest(1) == (7, "other")
    assert another(tmp_path, place).newest(2) is None

    CommitStore(memory).put(0, 3, "newer")
    backup.keep(memory, place)
    assert kept(s3, place) == ["0-3.commit", "1-7.commit"], "the one before goes when the new one is there"
    (memory / "0-3.commit").unlink()
    backup.keep(memory, place)
    assert kept(s3, place) == ["0-3.commit", "1-7.commit"], "one that is newer stays"
    backup.drop(place)
    assert s3.objects(place) == {}


def test_by_a_process_without_packages(s3, memory):
    """As supervisors run."""
    place = s3.folder()
    program = (
        f"import sys; sys.path.insert(0, {str(PACKAGES)!r}); from tfdist.protocol import backup; from pathlib import "
    )
    program += "Path; print(backup.keep(Path(sys.argv[1]), sys.argv[2]))"
    command = [sys.executable, "-I", "-S", "-c", program, str(memory), place]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "0-2.commit" in done.stdout, done.stderr
    assert kept(s3, place) == ["0-2.commit", "1-7.commit"]


def test_killed_before_the_manifest(s3, memory, tmp_path):
    """What has no manifest does not count, and the next job's first look removes it."""
    place = s3.folder()
    backup.keep(memory, place)
    CommitStore(memory).put(0, 3, "newer")
    s3.disturb = lambda number, method, path: "forbid" if method == "PUT" and path.endswith(".json") else None
    with pytest.raises(OSError, match="Check the credentials"):
        backup.keep(memory, place)
    s3.calm()
    assert another(tmp_path, place).newest(0) == (2, "new")
    assert any(name.startswith("0-3.commit") for name in s3.objects(place))
    backup.open_backup(place).check()
    assert not any(name.startswith("0-3.commit") for name in s3.objects(place))


def test_a_torn_object_is_passed_over(s3, memory, tmp_path, caplog):
    place = s3.folder()
    backup.keep(memory, place)
    (name,) = (name for name in s3.objects(place) if re.fullmatch(r"0-2\.commit\.[0-9a-f]{24}", name))
    s3.put(f"{place}/{name}", s3.objects(place)[name][:-1])
    restarted = another(tmp_path, place)
    assert restarted.newest(0) is None
    assert restarted.remove_damaged()[0].startswith(f"{place}/{name}: it has ")
    backup.keep(memory, place)
    assert restarted.newest(0) == (2, "new"), "a damaged one is written again"


def test_a_store_that_cannot_be_read_is_no_empty_one(s3, memory, tmp_path):
    place = s3.folder()
    backup.keep(memory, place)
    s3.disturb = lambda *_: "forbid"
    with pytest.raises(StoreError, match="could not list"):
        another(tmp_path, place).newest(0)
    s3.disturb = lambda number, method, path: "forbid" if "0-2.commit" in path else None
    with pytest.raises(StoreError, match="could not read 0-2"):
        another(tmp_path, place).newest(0)


def test_backup_of_fit_that_the_store_does_not_give(s3):
    """The one before it is intact, and would repeat what has been trained; a damaged one is passed over for it."""
    shelf = snapshot.open_shelf(s3.folder(), "backup_dir")
    for epoch in (1, 2):
        snapshot.write(shelf, snapshot.Position(epoch, 0), {"epoch": np.array(epoch)}, keep=2)
    s3.disturb = lambda number, method, path: "forbid" if "epoch-000002" in path else None
    with pytest.raises(StoreError, match="could not read epoch-000002"):
        snapshot.newest_valid(shelf)
    s3.calm()
    assert snapshot.newest_valid(shelf)[0] == snapshot.Position(2, 0)
    (name,) = (name for name in s3.objects(str(shelf)) if re.fullmatch(r"epoch-000002.*\.[0-9a-f]{24}", name))
    s3.put(f"{shelf}/{name}", b"torn")
    position, _, (line,) = snapshot.newest_valid(shelf)
    assert position == snapshot.Position(1, 0)
    assert f"{name} is skipped: it has 4 bytes" in line
