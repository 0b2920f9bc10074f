"""Finds objects, and reads them as files: each read asks for just these bytes."""

from __future__ import annotations

import glob
import io
from typing import Any

from tfdist.errors import StoreError
from tfdist.storage.store import Store


def find(address: str, suffix: str) -> list[str]:
    """The addresses of the objects that an address, a pattern, or the address of a folder stands for, sorted.

    Args:
        address: As in `s3://bucket/data/*.parquet`.
        suffix: Suffix of the objects to take from a folder, such as ".parquet".

    Raises:
        ConfigError: If nothing that is installed knows the scheme.
        StoreError: If the store cannot be listed, or has no such bucket.
    """
    folder, name = split(address)
    if glob.has_magic(address):
        parts = address.split("/")
        known = next(index for index, part in enumerate(parts) if glob.has_magic(part))
        store = Store("/".join(parts[:known]))
        return store.glob("/".join(parts[known:])) or _nothing(store)
    is_below_bucket = address.count("/") > len("//")
    if name and is_below_bucket and Store(folder).size(name) is not None:
        return [address]
    return [each for each in names(address) if each.endswith(suffix)]


def names(address: str) -> list[str]:
    """The addresses of the objects directly in a folder, sorted.

    Raises:
        ConfigError: If nothing that is installed knows the scheme.
        StoreError: If the store cannot be listed, or has no such bucket.
    """
    store = Store(address)
    return [f"{store}/{name}" for name in sorted(store.sizes())] or _nothing(store)


def tree(address: str) -> dict[str, int]:
    """The addresses of all objects below the address of a folder, sorted, with their sizes.

    Raises:
        ConfigError: If nothing that is installed knows the scheme.
        StoreError: If the store cannot be listed, or has no such bucket.
    """
    store = Store(address)
    return store.tree() or dict.fromkeys(_nothing(store), 0)


def _nothing(store: Store) -> list[str]:
    store.check_bucket()
    return []


def split(address: str) -> tuple[str, str]:
    """The address of the folder, and the name of the object in it."""
    folder, _, name = address.rpartition("/")
    return folder, name


class StoreFile(io.RawIOBase):
    """An object, read as a file. Thread-safe but for its position.

    Args:
        address: As in `s3://bucket/data/part-1.parquet`.

    Raises:
        StoreError: If it is not there, or cannot be read; from reads, too.
    """

    def __init__(self, address: str) -> None:
        super().__init__()
        folder, self._name = split(address)
        self._store, self._place = Store(folder), 0
        about = self._store.about(self._name)
        if about is None:
            raise StoreError(f"{address} is not there. Check the name, and make the dataset again if it was replaced")
        self.size, self.version = about

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self.size}[whence]
        self._place = max(0, base + offset)
        return self._place

    def read(self, size: int = -1) -> bytes:
        end = self.size if size < 0 else min(self.size, self._place + size)
        if end <= self._place:
            return b""
        data = self._store.read(self._name, self._place, end)
        if len(data) != end - self._place:
            raise StoreError(f"{self._store}/{self._name} has been replaced: it had {self.size} bytes")
        self._place = end
        return data

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
