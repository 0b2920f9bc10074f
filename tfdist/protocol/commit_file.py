"""Commit files, and their folders in memory."""

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

from tfdist.system.whole_file import FileKind

# A job's, or that of an agent in one.
_FOLDER = re.compile(r"tfdist-[0-9a-f]{16}(-[\w.-]+)?", re.ASCII)
_FORGOTTEN_S = 86400.0


def _crc32(parts: Sequence[memoryview]) -> str:
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return f"{checksum:08x}"


# Named by the number of the training in its script, and the number of the commit.
COMMIT = FileKind("commit 1", "%d-%d.commit", _crc32, mode=0o600)


def make_folder(memory: Path, name: str) -> tuple[Path, int]:
    """Opens a folder for commits and holds it until this process exits; other ranks of this host may have created it.

    Also removes folders of other jobs that nobody has locked or written to for a day: all processes of those jobs here
    were killed, and their launcher gave up on this host.

    Returns:
        The folder, and the descriptor that holds it, for `is_last`.

    Raises:
        OSError: If it cannot be created, or exists and is not private to this user.
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
        raise PermissionError(errno.EPERM, "it belongs to another user, or others have access", str(folder))
    fcntl.flock(held, fcntl.LOCK_SH)
    return folder, held


def is_last(held: int) -> bool:
    """Lets go of a folder; whether no other process holds it. One of those that let go is told so."""
    # Not as one step, which two could fail at the same time.
    fcntl.flock(held, fcntl.LOCK_UN)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


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
    except OSError:  # locked by a process
        return False
    finally:
        os.close(found)
    return True


def is_private(folder: Path, forbidden: int) -> bool:
    """Whether it belongs to this user and others lack these rights: a commit is a pickle, which can run code."""
    found = folder.stat()
    return found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & forbidden
