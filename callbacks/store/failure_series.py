"""Tells of files that cannot be written while training goes on: once for a series of failures, and at the end."""

from __future__ import annotations

import atexit
import errno
import logging
import os
import resource
import shutil
from pathlib import Path

_logger = logging.getLogger("tfdist")
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)


class FailureSeries:
    """Failures to write one kind of file, with no success in between.

    Args:
        kind: What is written, in the plural, as in "backups".
    """

    def __init__(self, kind: str) -> None:
        self.newest: str | None = None
        self._kind = kind
        self._failures = 0
        self._first = self._last = ""
        self._process = 0

    def begin(self) -> None:
        """Training begins. Where an exception ends it, `end` is called when the interpreter exits."""
        self._failures = 0
        self._process = os.getpid()
        atexit.unregister(self.end)
        atexit.register(self.end)

    def failed(self, name: str, error: BaseException, folder: Path, size_bytes: int) -> None:
        """Tells of the first failure of a series, with what is missing and what to do.

        Args:
            name: Of the file, as in "backup of epoch 3, batch 7".
            error: Why it is not written.
            folder: Where it would be.
            size_bytes: What it takes, as far as that is known.
        """
        self._failures += 1
        self._last = f"{type(error).__name__}: {error}"
        if self._failures > 1:
            return
        self._first = name
        _logger.error(
            "the %s is not written to %s: %s. %s The training goes on, and the next is tried as usual. %s",
            *(name, folder, self._last, advice(error, folder, size_bytes), self._newest()),
        )

    def succeeded(self, name: str) -> None:
        """Ends a series."""
        self.newest = name
        if self._failures:
            _logger.warning("%s are written again: the %s is, after %d failed", self._kind, name, self._failures)
        self._failures = 0

    def end(self) -> None:
        """Training ends: tells again where the last files could not be written."""
        atexit.unregister(self.end)
        if self._failures and self._process == os.getpid():  # and not one that it has forked, when that exits
            _logger.error(
                "the training has ended, and %d of its %s are not written, from the %s on; at last: %s. %s",
                *(self._failures, self._kind, self._first, self._last, self._newest()),
            )
        self._failures = 0

    def _newest(self) -> str:
        return f"The newest that is written is the {self.newest}." if self.newest else "None is written so far."


def disk_error(error: BaseException) -> OSError | None:
    """The error of a file or disk that `error` is or comes from: libraries wrap them, also in other classes."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, OSError):
            return found
        found = found.__cause__ or found.__context__
    return None


def advice(error: BaseException, folder: Path, size_bytes: int) -> str:
    """What to do about an error of a disk, and how much room is missing."""
    cause = disk_error(error)
    number = None if cause is None else cause.errno
    if number == errno.ENOSPC:
        return f"{_room(folder, size_bytes)} Make room there, or give another folder at the next start."
    if number == errno.EDQUOT:
        return f"It takes {_shown(size_bytes)}, which is more than the quota of this user has left. Make room in it."
    if number == errno.EFBIG:
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        most = (
            "the file system allows" if limit == resource.RLIM_INFINITY else f"{_shown(limit)}, the limit of ulimit -f"
        )
        return f"It takes {_shown(size_bytes)}, and a file may have no more than {most}. Raise that."
    if number in _NOT_ALLOWED:
        return "Make the folder writable for this user, or give another one at the next start."
    return "Look after the folder and its disk, or give another one at the next start."


def _room(folder: Path, size_bytes: int) -> str:
    try:
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        free = shutil.disk_usage(there).free
    except OSError as error:
        return f"It takes {_shown(size_bytes)}, and how much is free there cannot be told: {error}."
    takes = f"It takes {_shown(size_bytes)}, and {_shown(free)} are free there"
    missing = size_bytes - free
    return f"{takes}: {_shown(missing)} are missing." if missing > 0 else f"{takes} now, perhaps in too few inodes."


def _shown(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.1f} MB" if size_bytes >= 1_000_000 else f"{size_bytes / 1e3:.1f} kB"
