"""Copies of objects on the local disk, for readers that need files or read an object again."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from tfdist.errors import StoreError
from tfdist.storage.reading import StoreFile, split
from tfdist.storage.store import Store
from tfdist.system import exit_hook
from tfdist.system.scratch import scratch

_PURPOSE = "store"
_PIECE_BYTES = 16 << 20
# Names that were given to readers and not returned: more than the pipelines of a process open or read ahead at a time.
_MOST_GIVEN = 256

_LOCKS = 256

Result = TypeVar("Result")


class Cache:
    """Copies of objects, in a temporary folder that is gone with this process. Thread-safe.

    Those that were used least recently are removed first.

    Args:
        most_bytes: How much all copies may take together. An object that is larger is copied for each use.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._scratch = contextlib.ExitStack()
        self._folder: Path | None = None
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._bytes = 0  # their sum
        self._given: deque[Path] = deque()
        self._count = 0
        self._lock = threading.Lock()
        # An object is fetched once at a time; others with the same lock wait, too.
        self._downloads = [threading.Lock() for _ in range(_LOCKS)]

    def read(self, address: str) -> bytes:
        """The contents of an object. Raises StoreError."""
        with self._use(address, lambda path: path.open("rb")) as file:
            return file.read()

    def path(self, address: str, checksum: str = "") -> Path:
        """A file with the contents of an object, for one reader, who says when it is read.

        Args:
            address: As in `s3://bucket/data/part-1.tfrecord`.
            checksum: SHA-256 that the object must have; "" asks for none.

        Raises:
            StoreError: If it cannot be read, or has another checksum.
        """

        def give(path: Path) -> Path:
            self._count += 1
            own = path.with_name(f"{self._count}.given")
            os.link(path, own)
            self._given.append(own)
            # The readers of these were abandoned. Who has opened a file can read on.
            while len(self._given) > _MOST_GIVEN:
                self._given.popleft().unlink()
            return own

        return self._use(address, give, checksum)

    def give_back(self, path: Path) -> None:
        """Removes a file that `path` has given."""
        with self._lock, contextlib.suppress(ValueError):  # it was taken for abandoned
            self._given.remove(path)
            path.unlink()

    def _use(self, address: str, action: Callable[[Path], Result], checksum: str = "") -> Result:
        """Calls `action` with the copy, which is not removed meanwhile."""
        with self._lock:
            folder = self._folder = self._folder or self._open()
        path = folder / hashlib.sha256(address.encode()).hexdigest()
        with self._downloads[hash(address) % _LOCKS]:
            with self._lock:
                if address in self._sizes:
                    self._sizes.move_to_end(address)
                    return action(path)
            size = _download(address, path, checksum)
            with self._lock:
                self._sizes[address] = size
                self._bytes += size
                result = action(path)
                self._make_room(folder)
                return result

    def _open(self) -> Path:
        folder = Path(self._scratch.enter_context(scratch(_PURPOSE)))
        exit_hook.register(self._scratch.close)
        return folder

    def _make_room(self, folder: Path) -> None:
        while self._bytes > self._most_bytes:
            address, size = self._sizes.popitem(last=False)
            self._bytes -= size
            (folder / hashlib.sha256(address.encode()).hexdigest()).unlink()


def _download(address: str, path: Path, checksum: str) -> int:
    """Copies an object to a path, whole or not at all; returns its size."""
    unfinished = path.with_suffix(".part")
    digest = hashlib.sha256()
    try:
        with unfinished.open("wb") as copy:
            for piece in _pieces(address):
                copy.write(piece)
                if checksum:
                    digest.update(piece)
        if checksum and digest.hexdigest() != checksum:
            raise StoreError(
                f"{address} is damaged: its checksum is {digest.hexdigest()}, but {checksum} was written. Write it "
                "again"
            )
        unfinished.rename(path)
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(
            f"could not copy {address} to {path.parent}: {error}. Make room there, set TMPDIR to a larger disk, or "
            "lower TFDIST_STORE_CACHE"
        ) from error
    finally:
        unfinished.unlink(missing_ok=True)
    return path.stat().st_size


def _pieces(address: str) -> Iterator[bytes]:
    """The contents of an object: a small one by one request."""
    folder, name = split(address)
    beginning = Store(folder).read(name, 0, _PIECE_BYTES)
    yield beginning
    if len(beginning) == _PIECE_BYTES:
        with StoreFile(address) as rest:
            rest.seek(len(beginning))
            while piece := rest.read(_PIECE_BYTES):
                yield piece
