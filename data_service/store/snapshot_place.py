"""Where a snapshot is: in a folder of a disk, or in an object store.

The manifest, `tfdist_snapshot.json`, is written last and names all other files, with their sizes, relative to where it
is. In a store each save puts its objects under names of its own, so that two at a time do not touch each other's; what
no manifest names was left by a save that was cut off. A copy has the same contents in either kind of place.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import tensorflow as tf

from tfdist.data_service.source.file_list import some
from tfdist.errors import ConfigError
from tfdist.storage import reading
from tfdist.storage.store import Store
from tfdist.system.local_path import address_of, local_path
from tfdist.system.scratch import scratch

MANIFEST = "tfdist_snapshot.json"
# What TensorFlow opens to tell the types of the elements; the names are its.
TYPES = ("dataset_spec.pb", "snapshot.metadata")
_FORMAT = 1
_PURPOSE = "snapshot"
# The folder of a save in a store, and objects with which it was tried.
_OWN = r"[0-9a-f]{32}|\.tfdist-.*"


class Place(Protocol):
    """A place for one snapshot. As text it is its path or address."""

    is_store: bool

    def check(self) -> None:
        """Raises ConfigError if something is there, StoreError if nothing can be written there."""

    def begin(self) -> contextlib.AbstractContextManager[Path]:
        """A folder of the disk for the files, which is gone at the end of the context."""

    def finish(self, folder: Path, manifest: dict[str, Any]) -> None:
        """Makes what is in the folder the snapshot. Raises OSError; then there is none."""

    def read(self) -> dict[str, Any]:
        """The manifest; all files that it names are there. Raises ConfigError and StoreError."""

    def types(self, manifest: dict[str, Any]) -> Any:
        """The types of the elements, as `dataset.element_spec`. Raises StoreError."""

    def path_of(self, name: str) -> str:
        """The path or address of a file."""


def open_place(function: str, path: str | os.PathLike[str]) -> Place:
    """Opens the place at a path, or at an address such as `s3://bucket/train`.

    Args:
        function: Name of the function, for messages.
        path: The path or address.

    Raises:
        ConfigError: If nothing that is installed knows the scheme of an address.
    """
    address = address_of(path)
    return OnDisk(local_path(path, f"{function}: path").absolute()) if address is None else InStore(Store(address))


def described(folder: Path, files: list[Path], elements: int, compression: str) -> dict[str, Any]:
    """The manifest of these files in a folder."""
    return {
        "format": _FORMAT,
        "tensorflow": tf.__version__,
        "elements": elements,
        "compression": compression,
        "types": list(TYPES),
        "shards": [
            {"file": str(file.relative_to(folder)), "bytes": file.stat().st_size, "sha256": _sha256(file)}
            for file in files
        ],
    }


class OnDisk:
    """A folder."""

    is_store = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __str__(self) -> str:
        return str(self._folder)

    def check(self) -> None:
        if self._folder.exists():
            raise ConfigError(f"save: {self} already exists. Remove it, or save under another name.")

    @contextlib.contextmanager
    def begin(self) -> Iterator[Path]:
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        partial = self._folder.with_name(f"{self._partial_prefix}{uuid.uuid4().hex[:12]}")
        try:
            yield partial
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def finish(self, folder: Path, manifest: dict[str, Any]) -> None:
        for shard in manifest["shards"]:
            with open(folder / shard["file"], "rb") as written:
                os.fsync(written.fileno())
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))
        os.rename(folder, self._folder)

    def read(self) -> dict[str, Any]:
        path = self._folder / MANIFEST
        if not path.is_file():
            cut_off = sorted(entry.name for entry in self._folder.parent.glob(f"{self._partial_prefix}*"))
            others = sorted(os.listdir(self._folder)) if self._folder.is_dir() else []
            raise _no_snapshot(str(self), others, cut_off)

        def size(name: str) -> int | None:
            file = self._folder / name
            return file.stat().st_size if file.is_file() else None

        return _checked(str(self), path.read_bytes(), size)

    def types(self, manifest: dict[str, Any]) -> Any:
        return _types_in((self._folder / manifest.get("types", TYPES)[0]).parent)

    def path_of(self, name: str) -> str:
        return str(self._folder / name)

    @property
    def _partial_prefix(self) -> str:
        return f".{self._folder.name}.partial-"


class InStore:
    """Objects below an address."""

    is_store = True

    def __init__(self, store: Store) -> None:
        self._store = store

    def __str__(self) -> str:
        return str(self._store)

    def check(self) -> None:
        self._store.check()
        self._check_absent()
        others = [name for name in self._names(self._store.tree()) if not re.fullmatch(_OWN, name)]
        if others:
            raise ConfigError(f"save: {self} has other objects: {some(others)}. Save under another name.")

    def begin(self) -> contextlib.AbstractContextManager[Path]:
        return _scratch_folder()

    def finish(self, folder: Path, manifest: dict[str, Any]) -> None:
        own = Store(f"{self}/{uuid.uuid4().hex}")
        prefix = own.address.removeprefix(f"{self}/")
        named: dict[str, Any] = {"types": [f"{prefix}/{name}" for name in TYPES], "shards": []}
        try:
            for name in TYPES:
                own.put(folder / name, name)
            for number, shard in enumerate(manifest["shards"]):
                name = f"{number:08d}.snapshot"
                own.put(folder / shard["file"], name)
                named["shards"].append({**shard, "file": f"{prefix}/{name}"})
            self._check_absent()  # another save may have ended meanwhile
            (folder / MANIFEST).write_text(json.dumps({**manifest, **named}, indent=1))
            self._store.put(folder / MANIFEST, MANIFEST)
        except BaseException:
            with contextlib.suppress(OSError):
                # The manifest may have come there although its answer was lost.
                if self._store.size(MANIFEST) is None or prefix.encode() not in self._store.read(MANIFEST):
                    for name in own.sizes():
                        own.remove(name)
            raise

    def read(self) -> dict[str, Any]:
        sizes = reading.tree(str(self))
        if f"{self}/{MANIFEST}" not in sizes:
            names = self._names(sizes)
            cut_off = [name for name in names if re.fullmatch(_OWN, name)]
            raise _no_snapshot(str(self), [name for name in names if name not in cut_off], cut_off)
        return _checked(str(self), self._store.read(MANIFEST), lambda name: sizes.get(f"{self}/{name}"))

    def types(self, manifest: dict[str, Any]) -> Any:
        with tempfile.TemporaryDirectory(prefix="tfdist-") as folder:
            for name in manifest.get("types", TYPES):
                (Path(folder) / Path(name).name).write_bytes(self._store.read(name))
            return _types_in(Path(folder))

    def path_of(self, name: str) -> str:
        return f"{self}/{name}"

    def _check_absent(self) -> None:
        if self._store.size(MANIFEST) is not None:
            raise ConfigError(f"save: {self} already has a snapshot. Remove it, or save under another name.")

    def _names(self, tree: Iterable[str]) -> list[str]:
        """Of the objects and folders directly in this one."""
        return sorted({each.removeprefix(f"{self}/").partition("/")[0] for each in tree})


@contextlib.contextmanager
def _scratch_folder() -> Iterator[Path]:
    with scratch(_PURPOSE) as folder:
        yield Path(folder) / "snapshot"


def _types_in(folder: Path) -> Any:
    return tf.data.Dataset.load(str(folder)).element_spec


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while piece := opened.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def _no_snapshot(place: str, others: list[str], cut_off: list[str]) -> ConfigError:
    if others:
        reason = (
            f"what is there is not a complete snapshot of tfdist.data_service.save ({some(others)}). Check the name; "
            "files of another kind are for from_tfrecord, from_parquet or from_images"
        )
    elif cut_off:
        reason = f"it is being saved, or saving was interrupted ({', '.join(cut_off)}). Save it again"
    else:
        reason = "nothing is there. Check the name"
    return ConfigError(f"load: there is no snapshot at {place}: {reason}.")


def _checked(place: str, text: bytes, size_of: Callable[[str], int | None]) -> dict[str, Any]:
    """The manifest in these bytes."""
    try:
        manifest: dict[str, Any] = json.loads(text)
        known = manifest["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"load: {place}/{MANIFEST} cannot be read ({error!r}). Save the snapshot again.") from error
    if known != _FORMAT:
        raise ConfigError(f"load: {place} has format {known}; this tfdist reads format {_FORMAT}. Save it again.")
    for shard in manifest["shards"]:
        size = size_of(shard["file"])
        if size != shard["bytes"]:
            state = "is missing" if size is None else f"has {size} bytes"
            raise ConfigError(
                f"load: the snapshot at {place} is damaged: {shard['file']} {state}; expected {shard['bytes']} bytes. "
                "Save or copy it again."
            )
    return manifest
