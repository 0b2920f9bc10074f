"""Where the files of a checkpoint go: to a disk at once, or to an object store in a thread."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from tfdist.callbacks.store.writer import Writer
from tfdist.errors import StoreError
from tfdist.storage.store import Store
from tfdist.system.atomic_file import need_folder, write_atomically

Fill = Callable[[Path], object]
Written = Callable[[BaseException | None], object]


class Place(Protocol):
    """Where files go whose names are known only when they are written."""

    def check(self) -> None:
        """Raises OSError if files cannot be written there, as far as their folder is known."""

    def write(self, path: str, fill: Fill, written: Written) -> None:
        """Has a file written completely or not at all.

        Args:
            path: Its path or address.
            fill: Fills the file whose path it is given, now.
            written: Called with why it could not be written, or with None, now or in a thread. What `fill` raises is
                raised here instead.
        """

    def wait(self) -> None:
        """Waits until everything is written, with a deadline."""


class OnDisk:
    """Files on this machine. Written at once.

    Args:
        pattern: Their path, in which "{" begins what is known later.
    """

    def __init__(self, pattern: str) -> None:
        self._pattern = Path(pattern)

    def check(self) -> None:
        if self._pattern.is_dir():
            raise IsADirectoryError("it is a folder; expected a path for a file")
        need_folder(Path(*_known(self._pattern.parent.parts)))

    def write(self, path: str, fill: Fill, written: Written) -> None:
        write_atomically(path, fill)
        written(None)

    def wait(self) -> None:
        """Nothing is left to write."""


class InStore:
    """Objects. Each is a file of the temporary folder first, and becomes an object while training goes on.

    Args:
        pattern: Their address, in which "{" begins what is known later.
    """

    def __init__(self, pattern: str) -> None:
        self._store = Store("/".join(_known(pattern.split("/")[:-1])) + "/")
        self._folder = self._store.address
        self._writer = Writer(f"checkpoints to {self._folder}")

    def check(self) -> None:
        self._store.check()

    def write(self, path: str, fill: Fill, written: Written) -> None:
        if not self._writer.wait_for_room(lambda: self._store.is_struggling):
            raise StoreError(f"{self._folder} has not taken the checkpoints before this one, which is skipped")
        folder = Path(tempfile.mkdtemp(prefix="tfdist-"))
        file = folder / path.rpartition("/")[2]
        try:
            fill(file)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self._writer.put(lambda: self._upload(file, path, written))

    def wait(self) -> None:
        self._writer.wait()

    def _upload(self, file: Path, path: str, written: Written) -> None:
        """Runs in the writer's thread."""
        folder, _, name = path.rpartition("/")
        failure: BaseException | None = None
        try:
            store = self._store if folder == self._folder else Store(folder)
            store.put(file, name)
        except Exception as error:  # noqa: BLE001  (training continues, whatever the error)
            failure = error
        finally:
            shutil.rmtree(file.parent, ignore_errors=True)
        written(failure)


def _known(parts: tuple[str, ...] | list[str]) -> list[str]:
    """Those of a folder before the first that is known later."""
    return list(itertools.takewhile(lambda part: "{" not in part, parts))
