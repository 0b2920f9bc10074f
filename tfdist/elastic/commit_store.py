"""Commits in files in this host's memory, from which restarted processes continue. Independent of their contents.

A file (`tfdist.system.whole_file`) holds the sizes of its parts, a pickle, and the buffers the pickle refers to. Only
this user can access the folder, so the pickles can be trusted.
"""

from __future__ import annotations

import itertools
import logging
import os
import pickle
import stat
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfdist import errors
from tfdist.protocol import commit_file
from tfdist.protocol.backup import open_backup
from tfdist.protocol.commit_file import COMMIT
from tfdist.storage.shelf import OnDisk
from tfdist.system.local_path import address_of
from tfdist.system.whole_file import DamagedFileError, NumberedFile

_logger = logging.getLogger("tfdist")
_COUNT = struct.Struct("!Q")
# The newest, and the one before it in case the newest is damaged.
_KEPT = 2


class CommitStore:
    """The commits of a job on this host.

    Args:
        folder: The folder for the files, in memory.
        backup: The folder on a disk, or the address in a store, where an earlier job may have left some.

    Raises:
        ConfigError: If other users can write to either folder, or read the one in memory.
    """

    def __init__(self, folder: Path, backup: str | None = None) -> None:
        _refuse_others(folder, 0o077, "read by others", "Start the job again, and do not create this folder by hand.")
        if backup is not None and address_of(backup) is None and Path(backup).exists():
            advice = "Reading a commit can run code: use a folder of your own, or chmod go-w this one."
            _refuse_others(Path(backup), 0o022, "written by others", advice)
        self._folder = folder
        self._backup = None if backup is None else open_backup(backup)
        self._damaged: dict[str, str] = {}

    def put(self, training: int, number: int, content: Any) -> None:
        """Writes a commit completely or not at all, and keeps the last two of each training.

        Args:
            training: The number of the training in its script.
            number: The number of the commit, which increases.
            content: Anything picklable; arrays are not copied.

        Raises:
            OSError: If it cannot be written; the last two are unchanged then.
        """
        parts = _encode(content)
        # Reuses the file of the commit before the last two: 200 MB take 0.07 s, but 0.9 s in newly allocated memory.
        spare = self._folder / f"{training}.spare"
        try:
            with open(os.open(spare, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(COMMIT.header(parts))
                file.writelines(parts)
                file.truncate()
            spare.replace(self._folder / (COMMIT.template % (training, number)))
        except OSError:
            spare.unlink(missing_ok=True)
            raise
        for old in self._newest_first(self._folder, training)[_KEPT:]:
            old.path.replace(spare)

    def newest(self, training: int) -> tuple[int, Any] | None:
        """Number and content of the newest intact commit, or None. Logs and skips damaged ones.

        Raises:
            StoreError: If the backup is in a store that cannot be read.
        """
        memory = OnDisk(self._folder, COMMIT)
        for place in (memory,) if self._backup is None else (memory, self._backup):
            for commit in place.newest_first():
                if commit.numbers[0] != training:
                    continue
                try:
                    content = _decode(commit.read())
                except errors.StoreError:
                    raise
                except (DamagedFileError, OSError) as error:
                    _logger.warning("commit %s is skipped: %s", commit.name, error)
                    self._damaged[commit.name] = str(error)
                    continue
                if place is not memory:
                    _logger.warning("continuing from %s", commit.name)
                return commit.numbers[1], content
        return None

    def remove_damaged(self) -> list[str]:
        """Removes the commits in memory that `newest` skipped: they would count as newer than the next ones.

        Returns:
            The damaged files, in the backup too, each with what is wrong with it.
        """
        for name in self._damaged:
            if Path(name).parent == self._folder:
                Path(name).unlink(missing_ok=True)
        told = [f"{name}: {reason}" for name, reason in self._damaged.items()]
        self._damaged.clear()
        return told

    def _newest_first(self, folder: Path, training: int) -> list[NumberedFile]:
        return [commit for commit in COMMIT.newest_first(folder) if commit.numbers[0] == training]


def _refuse_others(folder: Path, forbidden: int, what: str, advice: str) -> None:
    if not commit_file.is_private(folder, forbidden):
        found = folder.stat()
        raise errors.ConfigError(
            f"{folder} holds commits of this job, but belongs to another user or can be {what} (user {found.st_uid}, "
            f"mode {stat.S_IMODE(found.st_mode):o}). {advice}"
        )


def _encode(content: Any) -> list[memoryview]:
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(content, protocol=5, buffer_callback=buffers.append)
    parts = [memoryview(pickled), *(buffer.raw() for buffer in buffers)]
    sizes = struct.pack(f"!{len(parts) + 1}Q", len(parts), *(part.nbytes for part in parts))
    return [memoryview(sizes), *parts]


def _decode(payload: memoryview) -> Any:
    pickled, *buffers = _parts_of(payload)
    try:
        return pickle.loads(pickled, buffers=buffers)  # noqa: S301  (this user's own file)
    except (pickle.UnpicklingError, EOFError) as error:
        raise DamagedFileError(f"its contents cannot be decoded: {type(error).__name__}: {error}") from error


def _parts_of(payload: memoryview) -> list[memoryview]:
    """Splits what `_encode` joined."""
    most = payload.nbytes // _COUNT.size
    (count,) = _COUNT.unpack_from(payload) if most else (0,)
    if not 0 < count < most:
        raise DamagedFileError(f"it has {payload.nbytes} bytes but an invalid number of parts: {count}")
    sizes: Sequence[int] = struct.unpack_from(f"!{count}Q", payload, _COUNT.size)
    ends = list(itertools.accumulate(sizes, initial=_COUNT.size * (1 + count)))
    if ends[-1] != payload.nbytes:
        raise DamagedFileError(f"it has {payload.nbytes} bytes, but its parts add up to {ends[-1]}")
    return [payload[start:end] for start, end in itertools.pairwise(ends)]
