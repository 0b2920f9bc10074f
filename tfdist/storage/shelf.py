"""Numbered files of one kind, of which the newest whole one is used: in a folder of a disk, or in an object store.

In a store nothing is renamed or replaced. A file becomes an object under a new name, whole; then a manifest, a small
object with the size and checksum of the former, makes it count. Objects without a manifest were left by a process that
was killed. Listings may come in any order.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tfdist.storage.store import Store
from tfdist.system.atomic_file import need_folder
from tfdist.system.local_path import address_of, local_path
from tfdist.system.whole_file import DamagedFileError, FileKind

_MANIFEST = ".json"
_LARGEST_MANIFEST = 1 << 16


@dataclass(frozen=True)
class Volume:
    """A file on a shelf. `read` returns its contents, and raises DamagedFileError or OSError."""

    numbers: tuple[int, int]
    name: str
    read: Callable[[], memoryview]


class Shelf(Protocol):
    """Files of one kind, each with two numbers. As text it is its path or address."""

    def check(self) -> None:
        """Raises OSError if files cannot be written there, unless the disk is full; removes what is unfinished."""

    def write(self, numbers: tuple[int, int], parts: Sequence[memoryview], keep: int) -> str:
        """Adds a file, and removes all but the `keep` newest. Raises OSError; no other is removed then.

        Returns:
            Its path or address.
        """

    def newest_first(self) -> list[Volume]:
        """The files, which may be damaged. Raises OSError."""

    def remove(self, volume: Volume) -> None:
        """Removes a file. Raises OSError."""

    def tidy(self) -> None:
        """Removes what is unfinished. Raises OSError."""

    def clear(self) -> None:
        """Removes all files, finished or not, and a folder of a disk that is then empty. Raises OSError."""


def open_shelf(place: str | os.PathLike[str], kind: FileKind, what: str) -> Shelf:
    """Opens the shelf at a path, or at an address such as `s3://bucket/run`.

    Args:
        place: The path of a folder, or an address.
        kind: The kind of its files.
        what: What the place is for, for messages.

    Raises:
        ConfigError: If nothing that is installed knows the scheme of an address.
    """
    address = address_of(place)
    return OnDisk(local_path(place, what), kind) if address is None else InStore(Store(address), kind)


class OnDisk:
    """Files in a folder."""

    def __init__(self, folder: Path, kind: FileKind) -> None:
        self._folder, self._kind = folder, kind

    def __str__(self) -> str:
        return str(self._folder)

    def check(self) -> None:
        need_folder(self._folder)
        self.tidy()

    def write(self, numbers: tuple[int, int], parts: Sequence[memoryview], keep: int) -> str:
        path = self._kind.write(self._folder, numbers, parts)
        for old in self._kind.newest_first(self._folder)[keep:]:
            old.path.unlink(missing_ok=True)
        return str(path)

    def newest_first(self) -> list[Volume]:
        def volume(numbers: tuple[int, int], path: Path) -> Volume:
            return Volume(numbers, str(path), lambda: self._kind.contents(path.read_bytes()))

        return [volume(each.numbers, each.path) for each in self._kind.newest_first(self._folder)]

    def remove(self, volume: Volume) -> None:
        (self._folder / volume.name).unlink(missing_ok=True)

    def tidy(self) -> None:
        self._kind.remove_unfinished(self._folder)

    def clear(self) -> None:
        self.tidy()
        for file in self._kind.newest_first(self._folder):
            file.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it has files of others, or is a link
            self._folder.rmdir()


class InStore:
    """Objects with manifests."""

    def __init__(self, store: Store, kind: FileKind) -> None:
        self._store, self._kind = store, kind

    def __str__(self) -> str:
        return str(self._store)

    def check(self) -> None:
        self._store.check()
        self.tidy()

    def write(self, numbers: tuple[int, int], parts: Sequence[memoryview], keep: int) -> str:
        # Two jobs may write the same numbers: one was killed, and the next came to the same place.
        name = f"{self._kind.template % numbers}.{time.time_ns():016x}{secrets.token_hex(4)}"
        with tempfile.TemporaryDirectory(prefix="tfdist-") as folder:
            path = Path(folder) / "object"
            digest = hashlib.sha256()
            with path.open("wb") as file:
                for part in (memoryview(self._kind.header(parts)), *parts):
                    file.write(part)
                    digest.update(part)
            about = {"bytes": path.stat().st_size, "sha256": digest.hexdigest()}
            manifest = Path(folder) / "manifest"
            manifest.write_text(json.dumps(about))
            self._store.put(path, name)
            self._store.put(manifest, name + _MANIFEST)
        for old in self._newest_first()[keep:]:
            self._remove(old)
        return f"{self._store}/{name}"

    def newest_first(self) -> list[Volume]:
        def volume(name: str) -> Volume:
            return Volume(self._key(name)[0], f"{self._store}/{name}", lambda: self._read(name))

        return [volume(name) for name in self._newest_first()]

    def remove(self, volume: Volume) -> None:
        self._remove(volume.name.rpartition("/")[2])

    def tidy(self) -> None:
        names = self._store.sizes()
        for name in names:
            is_whole = name + _MANIFEST in names or not re.fullmatch(self._pattern, name)
            # A listing may lag behind.
            if not is_whole and self._store.size(name + _MANIFEST) is None:
                self._store.remove(name)

    def clear(self) -> None:
        names = self._store.sizes()
        # The manifests first, so that none is left of an object that is gone.
        for suffix in (re.escape(_MANIFEST), ""):
            for name in names:
                if re.fullmatch(self._pattern + suffix, name):
                    self._store.remove(name)

    def _remove(self, name: str) -> None:
        self._store.remove(name + _MANIFEST)
        self._store.remove(name)

    def _newest_first(self) -> list[str]:
        found = (re.fullmatch(rf"({self._pattern}){re.escape(_MANIFEST)}", name) for name in self._store.sizes())
        return sorted((match[1] for match in found if match), key=self._key, reverse=True)

    def _key(self, name: str) -> tuple[tuple[int, int], str]:
        match = re.fullmatch(self._pattern, name)
        assert match is not None
        return (int(match[1]), int(match[2])), match[3]

    def _read(self, name: str) -> memoryview:
        text = self._store.read(name + _MANIFEST)
        try:
            about = json.loads(text[:_LARGEST_MANIFEST])
            size, checksum = int(about["bytes"]), str(about["sha256"])
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedFileError(f"its manifest cannot be read: {type(error).__name__}: {error}") from error
        data = self._store.read(name, 0, size + 1)
        if len(data) != size:
            raise DamagedFileError(f"it has {len(data)} bytes of {size}")
        if hashlib.sha256(data).hexdigest() != checksum:
            raise DamagedFileError("its checksum does not match that of its manifest")
        return self._kind.contents(data)

    @property
    def _pattern(self) -> str:
        return self._kind.pattern + r"\.([0-9a-f]{24})"
