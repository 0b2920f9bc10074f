"""Tests of tfdist.protocol.commit_file."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tfdist.protocol import commit_file
from tfdist.protocol.commit_file import COMMIT
from tfdist.system.whole_file import DamagedFileError

_PIPES: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_newest_first(tmp_path: Path, put: Any) -> None:
    for training, number in ((0, 9), (1, 3), (0, 10), (12, 1)):
        put(tmp_path, training, number, b"x")
    (tmp_path / "0.spare").touch()
    (tmp_path / "x0-1.commit").touch()
    found = COMMIT.newest_first(tmp_path)
    assert [each.numbers for each in found] == [(12, 1), (1, 3), (0, 10), (0, 9)]
    assert bytes(COMMIT.contents(found[2].path.read_bytes())) == b"x"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "does not begin like a commit"),
        (b"tfdist commit 1 00000000 0", "does not begin like a commit"),
        (b"tfdist commit 1 00000000 5\nabcd", "has 4 bytes of 5"),
        (b"tfdist commit 1 00000000 4\nabcd", "checksum"),
    ],
)
def test_damaged(data: bytes, message: str) -> None:
    with pytest.raises(DamagedFileError, match=message):
        COMMIT.contents(data)


@pytest.mark.parametrize("mode", [0o777, 0o750])
def test_folder_that_somebody_else_has_made(tmp_path: Path, mode: int) -> None:
    (tmp_path / "tfdist-x").mkdir()
    (tmp_path / "tfdist-x").chmod(mode)
    with pytest.raises(PermissionError, match="it belongs to another user, or others have access"):
        commit_file.make_folder(tmp_path, "tfdist-x")
    (tmp_path / "own").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "own")
    with pytest.raises(OSError, match="link"):
        commit_file.make_folder(tmp_path, "link")


def test_folders_that_nobody_holds_are_removed_after_a_day(tmp_path: Path) -> None:
    old, held, other = ("tfdist-" + digit * 16 for digit in "012")
    of_agent = f"{old}-worker-1.net"
    for name in (old, held, other, of_agent, "tfdist-of-the-user"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0-1.commit").touch()
    days_ago = time.time() - 2 * 86400
    for name in (old, held, of_agent, "tfdist-of-the-user"):
        os.utime(tmp_path / name, (days_ago, days_ago))
    (tmp_path / ("tfdist-" + "3" * 16)).symlink_to(tmp_path / "tfdist-of-the-user")
    holder = subprocess.Popen(["flock", "--shared", tmp_path / held, "sh", "-c", "echo held; read line"], **_PIPES)
    with holder:
        assert holder.stdout.readline() == "held\n"
        made, first = commit_file.make_folder(tmp_path, "tfdist-" + "4" * 16)
        again, second = commit_file.make_folder(tmp_path, made.name)
        assert again == made, "another rank of this host"
        assert [commit_file.is_last(each) for each in (first, second)] == [False, True]
        holder.stdin.close()
    assert made.stat().st_mode & 0o777 == 0o700
    assert sorted(_names(tmp_path)) == [held, other, "tfdist-" + "3" * 16, made.name, "tfdist-of-the-user"]


@pytest.mark.parametrize(
    ("mode", "forbidden", "private"), [(0o700, 0o077, True), (0o755, 0o022, True), (0o775, 0o022, False)]
)
def test_private(tmp_path: Path, mode: int, forbidden: int, private: bool) -> None:
    tmp_path.chmod(mode)
    assert commit_file.is_private(tmp_path, forbidden) == private
