"""Files that grow on the local disk and are put into a store now and then, and at the end: timelines, logs, output."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from tfdist import config
from tfdist.errors import StoreError
from tfdist.storage.store import Store
from tfdist.system.scratch import scratch

_logger = logging.getLogger("tfdist")
_PURPOSE = "upload"
# The last upload of a process may take this long.
_EXIT_S = 120.0


class Mirror:
    """A folder of the disk whose files a thread puts into a store, each whole, if they have changed. Thread-safe.

    A failure is told once in a row, and tried again at the next time.

    Args:
        address: Of the folder in the store, such as `s3://bucket/run/logs`.
        seconds: How often files are put there.
        say: Takes a warning.

    Raises:
        ConfigError: If nothing that is installed knows the scheme.
        StoreError: If the store cannot be written, within 10 seconds.
    """

    def __init__(self, address: str, seconds: float, say: Callable[[str], object] = _logger.warning) -> None:
        self._store, self._seconds, self._say = Store(address), seconds, say
        self._store.check()
        self._scratch = contextlib.ExitStack()
        self.folder = Path(self._scratch.enter_context(scratch(_PURPOSE)))
        self._known: dict[str, tuple[int, int]] = {}
        self._has_failed = False
        self._busy, self._over = threading.Lock(), threading.Event()
        threading.Thread(target=self._run, name="tfdist-upload", daemon=True).start()

    @property
    def address(self) -> str:
        """Of the folder in the store."""
        return self._store.address

    def names(self) -> set[str]:
        """What is in the folder of the store. Raises StoreError."""
        return set(self._store.sizes())

    def upload(self) -> None:
        """Puts what has changed into the store."""
        with self._busy:
            for path in sorted(path for path in self.folder.rglob("*") if path.is_file()):
                try:
                    self._upload(path)
                except StoreError as error:
                    if not self._has_failed:
                        self._say(
                            f"{path.name} is not in the store as it is on the disk: {error}. It is tried again every "
                            f"{self._seconds:g} s (TFDIST_UPLOAD_SECONDS), and at the end"
                        )
                    self._has_failed = True
                    return
            self._has_failed = False

    def close(self) -> None:
        """Uploads what is left, and removes the folder."""
        self._over.set()
        self.upload()
        self._scratch.close()

    def close_at_exit(self) -> None:
        """Does so in another process: the libraries of stores start threads, which an interpreter that ends cannot."""
        self._over.set()
        command = [sys.executable, "-m", __name__, str(self.folder), self.address]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=_EXIT_S, check=False
            )
            problem = done.stderr.strip().rpartition("\n")[2] if done.returncode else ""
        except (OSError, subprocess.TimeoutExpired) as error:
            problem = str(error)
        if problem:
            self._say(f"the last upload to {self.address} has failed: {problem}")
        self._scratch.close()

    def _upload(self, path: Path) -> None:
        name, about = str(path.relative_to(self.folder)), path.stat()
        state = about.st_mtime_ns, about.st_size
        if self._known.get(name) != state:
            self._store.put(path, name)
            self._known[name] = state

    def _run(self) -> None:
        while not self._over.wait(self._seconds):
            self.upload()


_mirrors: dict[str, Mirror] = {}


def of(address: str) -> Mirror:
    """The mirror of this process for a folder in a store. Raises what `Mirror` raises."""
    if address not in _mirrors:
        _mirrors[address] = Mirror(address, config.read().upload_seconds)
    return _mirrors[address]


def upload_all() -> None:
    """Puts all that this process has written and not uploaded into its stores."""
    for mirror in _mirrors.values():
        mirror.upload()


def close_all() -> None:
    """Does so for the last time, when the interpreter ends."""
    while _mirrors:
        _mirrors.popitem()[1].close_at_exit()


def _upload_folder(folder: str, address: str) -> None:
    store = Store(address)
    for path in sorted(path for path in Path(folder).rglob("*") if path.is_file()):
        store.put(path, str(path.relative_to(folder)))


if __name__ == "__main__":
    _upload_folder(*sys.argv[1:])
