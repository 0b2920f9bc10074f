"""Files of commits: their names, whether one is whole, and keeping the newest on a disk. It knows no contents.

A file is the line "tfdist commit 1 CRC32 BYTES" and so many bytes.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import re
import shutil
import stat
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tfdist.system.atomic_file import write_atomically

_HEADER = re.compile(rb"tfdist commit 1 ([0-9a-f]{8}) (\d{1,18})\n")
_NAME = re.compile(r"(\d+)-(\d+)\.commit")
# As `write_atomically` names it.
_UNFINISHED = re.compile(rf"\..+\.\d+\.{_NAME.pattern}")
_FOLDER = re.compile(r"tfdist-[0-9a-f]{16}")
_FORGOTTEN_S = 86400.0


class DamagedCommitError(ValueError):
    """A file is not a whole commit."""


@dataclass(frozen=True, order=True)
class CommitFile:
    """A commit of one of the trainings of a script; the numbers of a training count up."""

    training: int
    number: int
    path: Path

    def read(self) -> memoryview:
        """What follows the first line. Raises DamagedCommitError or OSError."""
        return _payload(self.path.read_bytes())


def name_of(training: int, number: int) -> str:
    return f"{training}-{number}.commit"


def header(parts: Sequence[memoryview]) -> bytes:
    """The first line of a file of these bytes."""
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return b"tfdist commit 1 %08x %d\n" % (checksum, sum(part.nbytes for part in parts))


def newest_first(folder: Path) -> list[CommitFile]:
    """The commits there, those of each training together."""
    found = [(match, path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    return sorted((CommitFile(int(match[1]), int(match[2]), path) for match, path in found), reverse=True)


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
    for commit in newest_first(folder):
        if commit.training in kept:
            continue
        try:
            data = commit.read()
        except (DamagedCommitError, OSError):
            continue  # the one before may be whole
        backup.mkdir(mode=0o700, parents=True, exist_ok=True)
        there = [each for each in newest_first(backup) if each.training == commit.training]
        kept[commit.training] = commit.path.name
        if any(each.number >= commit.number and _is_whole(each) for each in there):
            continue
        write_atomically(backup / commit.path.name, functools.partial(_fill, data))
        for old in there:
            if old.number < commit.number:
                old.path.unlink(missing_ok=True)
    return list(kept.values())


def _is_whole(commit: CommitFile) -> bool:
    try:
        commit.read()
    except (DamagedCommitError, OSError):
        return False
    return True


def drop(backup: Path) -> None:
    """Removes the commits there, and what was left of writing some: the training has ended."""
    if backup.is_dir():
        for path in backup.glob("*.commit"):
            if _NAME.fullmatch(path.name) or _UNFINISHED.fullmatch(path.name):
                path.unlink(missing_ok=True)


def _fill(data: memoryview, path: Path) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(header([data]))
        file.write(data)


def _payload(data: bytes) -> memoryview:
    match = _HEADER.match(data)
    if match is None:
        raise DamagedCommitError("it does not begin like a commit")
    payload = memoryview(data)[match.end() :]
    if payload.nbytes != int(match[2]):
        raise DamagedCommitError(f"it has {payload.nbytes} bytes of {int(match[2])}")
    if zlib.crc32(payload) != int(match[1], 16):
        raise DamagedCommitError("its checksum does not fit its contents")
    return payload
