"""Tests of tfdist.protocol.backup on a disk; tests/storage/test_backup.py has those on a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tfdist.protocol import backup
from tfdist.protocol.commit_file import COMMIT


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_newest_whole_one_of_each_training_is_kept(tmp_path: Path, put: Any) -> None:
    memory, disk = tmp_path / "memory", tmp_path / "a" / "disk"
    put(memory, 0, 1, b"old")
    put(memory, 0, 2, b"new")
    put(memory, 1, 7, b"whole")
    damaged = put(memory, 1, 8, b"damaged")
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert sorted(backup.keep(memory, str(disk))) == ["0-2.commit", "1-7.commit"]
    assert _names(disk) == ["0-2.commit", "1-7.commit"]
    assert (disk / "0-2.commit").read_bytes() == (memory / "0-2.commit").read_bytes()
    assert disk.stat().st_mode & 0o777 == 0o700
    assert (disk / "0-2.commit").stat().st_mode & 0o777 == 0o600

    put(memory, 0, 3, b"newer")
    backup.keep(memory, str(disk))
    assert _names(disk) == ["0-3.commit", "1-7.commit"], "the one before goes when the new one is there"
    (memory / "0-3.commit").unlink()
    assert "0-2.commit" in backup.keep(memory, str(disk))
    assert _names(disk) == ["0-3.commit", "1-7.commit"], "one that is newer stays"
    (disk / "0-3.commit").write_bytes(b"damaged")
    backup.keep(memory, str(disk))
    assert _names(disk) == ["0-2.commit", "0-3.commit", "1-7.commit"], "but if it is damaged it does not count"
    (disk / ".host-1.7.0-9.commit").touch()
    (disk / ".mine.commit").touch()
    backup.drop(str(disk))
    assert _names(disk) == [".mine.commit"]
    backup.drop(str(tmp_path / "never made"))


def test_one_that_cannot_be_read_is_passed_over(tmp_path: Path, put: Any) -> None:
    memory = tmp_path / "memory"
    put(memory, 0, 1, b"whole")
    (memory / "0-2.commit").mkdir()
    assert backup.keep(memory, str(tmp_path / "disk")) == ["0-1.commit"]


def test_nothing_to_keep_makes_no_folder(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    assert backup.keep(tmp_path / "memory", str(tmp_path / "disk")) == []
    assert not (tmp_path / "disk").exists()


def test_what_was_kept_before_stays_when_it_cannot_be_written(tmp_path: Path, put: Any) -> None:
    memory, disk = tmp_path / "memory", tmp_path / "disk"
    put(memory, 0, 1, b"one")
    backup.keep(memory, str(disk))
    put(memory, 0, 2, b"two")
    (disk / "0-2.commit").mkdir()
    with pytest.raises(IsADirectoryError):
        backup.keep(memory, str(disk))
    assert _names(disk) == ["0-1.commit", "0-2.commit"]
    assert bytes(COMMIT.contents((disk / "0-1.commit").read_bytes())) == b"one"
