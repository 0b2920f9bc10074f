"""Temporary folders that are gone with their owner; what killed owners have left is removed by a later one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "tfdist-"
# A folder this young may belong to one that has not locked it yet.
_YOUNG_S = 60.0


@contextlib.contextmanager
def scratch(purpose: str) -> Iterator[str]:
    """A new folder, locked until it is removed at the end.

    Args:
        purpose: A part of its name, the same for all such folders.
    """
    clear(purpose)
    folder = tempfile.mkdtemp(prefix=f"{_PREFIX}{purpose}.")
    lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def clear(purpose: str) -> None:
    """Removes such folders of this user whose owner is dead: the kernel has released their locks."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}{purpose}.*"):
        with contextlib.suppress(OSError):  # locked, another user's, or removed meanwhile
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                found = os.fstat(lock)
                if found.st_uid == os.geteuid() and time.time() - found.st_mtime > _YOUNG_S:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)
