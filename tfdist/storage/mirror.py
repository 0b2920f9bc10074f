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

    A failure is told once in a row, and tried again at the next time. What could not be uploaded at the end is kept.

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
        self._problem = ""  # of the last upload
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
                    # An interpreter that ends does the rest by `close_at_exit`.
                    if not self._problem and threading.main_thread().is_alive():
                        self._say(
                            f"{path.relative_to(self.folder)} is not uploaded: {error}. Training goes on, and it is "
                            f"tried again every {self._seconds:g} s (TFDIST_UPLOAD_SECONDS), and at the end"
                        )
                    self._problem = str(error)
                    return
            self._problem = ""

    def close(self) -> None:
        """Uploads what is left, and removes the folder."""
        self._over.set()
        self.upload()
        self._end(self._problem)

    def close_at_exit(self) -> None:
        """Does so in another process: the libraries of stores start threads, which an interpreter that ends cannot."""
        self._over.set()
        self._busy.acquire(timeout=_EXIT_S)  # else an older state could arrive after the last one; nobody uploads again
        command = [sys.executable, "-m", __name__, str(self.folder), self.address]
        try:
            self._store.settle()  # for the same reason
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=_EXIT_S, check=False
            )
            problem = done.stderr.strip().rpartition("\n")[2] if done.returncode else ""
        except (OSError, subprocess.TimeoutExpired) as error:  # a StoreError too
            problem = str(error)
        self._end(problem)

    def _end(self, problem: str) -> None:
        if problem:
            # By its name, a later process would take it for what a killed one has left.
            kept = self.folder.rename(self.folder.with_name(self.folder.name.replace(_PURPOSE, "not-uploaded", 1)))
            self._say(f"the last upload to {self.address} has failed, the files are in {kept}: {problem}")
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
    try:
        _upload_folder(*sys.argv[1:])
    except StoreError as problem:
        sys.exit(str(problem))
