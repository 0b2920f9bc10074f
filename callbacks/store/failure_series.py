"""Reports files that cannot be written while training continues: once per series of failures, and at the end."""

from __future__ import annotations

import atexit
import errno
import logging
import os
import resource
import shutil
import tempfile
from pathlib import Path

from tfdist.errors import StoreError
from tfdist.system.local_path import address_of

_logger = logging.getLogger("tfdist")
_GOES_ON = "Training continues, and the next one will be tried as usual."
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)


class FailureSeries:
    """Failures to write one kind of file, with no success in between.

    Args:
        kind: What is written, in the plural, such as "backups".
    """

    def __init__(self, kind: str) -> None:
        self.newest: str | None = None
        self._kind = kind
        self._failures = 0
        self._first = self._last = ""
        self._process = 0

    def begin(self) -> None:
        """Called when training begins. If an exception stops it, `end` is called when the interpreter exits."""
        self._failures = 0
        self._process = os.getpid()
        atexit.unregister(self.end)
        atexit.register(self.end)

    def failed(self, name: str, error: BaseException, place: str | Path, size_bytes: int) -> None:
        """Logs the first failure of a series, with its cause and the remedy.

        Args:
            name: The name of the file, such as "backup of epoch 3, batch 7".
            error: Why it could not be written.
            place: The folder it belongs in, or an address.
            size_bytes: Its approximate size.
        """
        self._failures += 1
        self._last = f"{type(error).__name__}: {error}"
        if self._failures > 1:
            return
        self._first = name
        _logger.error(
            "could not write the %s to %s: %s. %s",
            *(
                name,
                place,
                self._last,
                " ".join(filter(None, (advice(error, place, size_bytes), _GOES_ON, self._newest()))),
            ),
        )

    def succeeded(self, name: str) -> None:
        """Ends a series."""
        self.newest = name
        if self._failures:
            _logger.warning(
                "%s can be written again: wrote the %s (%d failed before it)", self._kind, name, self._failures
            )
        self._failures = 0

    def end(self) -> None:
        """Called when training ends: logs a second error if the last files could not be written."""
        atexit.unregister(self.end)
        if self._failures and self._process == os.getpid():  # not in a forked process, when that exits
            _logger.error(
                "training has ended, and %d of its %s could not be written, starting with the %s. Last error: %s. %s",
                *(self._failures, self._kind, self._first, self._last, self._newest()),
            )
        self._failures = 0

    def _newest(self) -> str:
        return f"The newest complete one is the {self.newest}." if self.newest else "None has been written so far."


def disk_error(error: BaseException) -> OSError | None:
    """The `OSError` that `error` is or was caused by; libraries wrap them in exceptions of other classes."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, OSError):
            return found
        found = found.__cause__ or found.__context__
    return None


def advice(error: BaseException, place: str | Path, size_bytes: int) -> str:
    """How to fix a disk error, and how much space is missing; empty if the error says it."""
    cause = disk_error(error)
    if isinstance(cause, StoreError):
        return ""
    # What goes to a store is a file first.
    folder = Path(place) if address_of(place) is None else Path(tempfile.gettempdir())
    number = None if cause is None else cause.errno
    if number == errno.ENOSPC:
        return f"{_room(folder, size_bytes)} Free up space there, or use another folder at the next start."
    if number == errno.EDQUOT:
        return f"It needs {_shown(size_bytes)}, more than is left of this user's quota. Free up some of it."
    if number == errno.EFBIG:
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        most = (
            "the file system allows" if limit == resource.RLIM_INFINITY else f"{_shown(limit)}, the limit of ulimit -f"
        )
        return f"It needs {_shown(size_bytes)}, but a file may have no more than {most}. Raise that limit."
    if number in _NOT_ALLOWED:
        return "Make the folder writable for this user, or use another one at the next start."
    return "Check the folder and its disk, or use another folder at the next start."


def _room(folder: Path, size_bytes: int) -> str:
    try:
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        free = shutil.disk_usage(there).free
    except OSError as error:
        return f"It needs {_shown(size_bytes)}, and the free space there is unknown: {error}."
    takes = f"It needs {_shown(size_bytes)}, and {_shown(free)} are free there"
    missing = size_bytes - free
    return f"{takes}: {_shown(missing)} are missing." if missing > 0 else f"{takes} now; the disk may be out of inodes."


def _shown(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.1f} MB" if size_bytes >= 1_000_000 else f"{size_bytes / 1e3:.1f} kB"
