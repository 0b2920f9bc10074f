"""Files of commits: keeping the newest on a disk, and the folders that they are in. It knows no contents."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import stat
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

from tfdist.system.whole_file import DamagedFileError, FileKind

_FOLDER = re.compile(r"tfdist-[0-9a-f]{16}")
_FORGOTTEN_S = 86400.0


def _crc32(parts: Sequence[memoryview]) -> str:
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return f"{checksum:08x}"


# By number of the training in its script, and of the commit.
COMMIT = FileKind("commit 1", "%d-%d.commit", _crc32, mode=0o600)


def make_folder(memory: Path, name: str) -> Path:
    """A folder for commits, which this process holds until it ends; other ranks of this host may have made it.

    Those of other jobs that nobody holds and nobody has written to for a day are removed: their host was given up while
    all processes there had been killed.

    Raises:
        OSError: If it cannot be made, or is there already and not this user's alone.
    """
    for old in memory.glob("tfdist-*"):
        if _FOLDER.fullmatch(old.name) and old.name != name and _is_forgotten(old):
            shutil.rmtree(old, ignore_errors=True)
    folder = memory / name
    folder.mkdir(mode=0o700, exist_ok=True)
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    about = os.fstat(held)
    if about.st_uid != os.geteuid() or stat.S_IMODE(about.st_mode) & 0o077:
        os.close(held)
        raise PermissionError(errno.EPERM, "it is another user's, or others may use it", str(folder))
    fcntl.flock(held, fcntl.LOCK_SH)
    return folder


def _is_forgotten(folder: Path) -> bool:
    try:
        found = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        about = os.fstat(found)
        if about.st_uid != os.geteuid() or time.time() - about.st_mtime < _FORGOTTEN_S:
            return False
        fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # somebody holds it
        return False
    finally:
        os.close(found)
    return True


def is_private(folder: Path, forbidden: int) -> bool:
    """Whether it is this user's, and others lack these rights: a commit is a pickle, which can run code."""
    found = folder.stat()
    return found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & forbidden


def keep_newest(folder: Path, backup: Path) -> list[str]:
    """Copies the newest whole commit of each training from memory to a disk.

    Args:
        folder: Where they are.
        backup: A folder, made if need be. One of a training that is there already goes when a newer one has come, and
            stays where it is newer itself.

    Returns:
        The names of those that are there now, and were here.

    Raises:
        OSError: If one cannot be written. What was there before is unchanged.
    """
    kept: dict[int, str] = {}
    for commit in COMMIT.newest_first(folder):
        training, _ = commit.numbers
        if training in kept:
            continue
        try:
            data = COMMIT.contents(commit.path.read_bytes())
        except (DamagedFileError, OSError):
            continue  # the one before may be whole
        backup.mkdir(mode=0o700, parents=True, exist_ok=True)
        there = [each for each in COMMIT.newest_first(backup) if each.numbers[0] == training]
        kept[training] = commit.path.name
        if any(each.numbers >= commit.numbers and _is_whole(each.path) for each in there):
            continue
        COMMIT.write(backup, commit.numbers, [data])
        for old in there:
            if old.numbers < commit.numbers:
                old.path.unlink(missing_ok=True)
    return list(kept.values())


def _is_whole(path: Path) -> bool:
    try:
        COMMIT.contents(path.read_bytes())
    except (DamagedFileError, OSError):
        return False
    return True


def drop(backup: Path) -> None:
    """Removes the commits there, and what was left of writing some: the training has ended."""
    for commit in COMMIT.newest_first(backup):
        commit.path.unlink(missing_ok=True)
    COMMIT.remove_unfinished(backup)
