"""The few operations on a place with an address, by fsspec, or by `tf.io.gfile` where only TensorFlow knows the scheme.

Everything here may fail with any exception of the libraries, and may block; `store` bounds and translates that.
"""

from __future__ import annotations

import errno
import importlib
import sys
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tfdist.errors import ConfigError

# Whose addresses begin with the name of a bucket.
_OF_BUCKETS = ("s3", "s3a", "gs", "gcs")


# Under which of these a store tells fsspec what changes when an object is replaced.
_VERSIONS = ("ETag", "etag", "generation", "md5Hash", "LastModified", "last_modified", "mtime", "created")


class About(NamedTuple):
    """The size of an object in bytes, and what changes when it is replaced; empty where the store does not say."""

    size: int
    version: str


class FileSystem(Protocol):
    """A folder at an address. Names are of objects directly in it."""

    def put(self, source: Path, name: str) -> None:
        """Makes a file an object, or replaces one."""

    def read(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        """The contents of an object, or the bytes from `begin` up to `end`."""

    def about(self, name: str) -> About | None:
        """What the store says of an object; None if there is none of this name."""

    def glob(self, pattern: str) -> list[str]:
        """The addresses of the objects that match a pattern below the folder, such as `*/data-*.parquet`."""

    def tree(self) -> dict[str, int]:
        """The addresses of all objects in the folder and below, with their sizes; empty if there is no such folder."""

    def has_bucket(self) -> bool:
        """Whether the bucket is there, as far as this process may know; True where there are no buckets."""

    def sizes(self) -> dict[str, int]:
        """The objects, with their sizes in bytes; empty if there is no such folder."""

    def remove(self, name: str) -> None:
        """Removes an object."""


def open_folder(address: str) -> FileSystem:
    """Opens a folder; contacts nobody yet.

    Args:
        address: As in `s3://bucket/folder`.

    Raises:
        ConfigError: If nothing that is installed knows the scheme, or the address names no bucket or has a password,
            which messages would repeat.
    """
    scheme, _, rest = address.partition("://")
    scheme, user = scheme.lower(), rest.partition("/")[0].rpartition("@")[0]
    if ":" in user:
        raise ConfigError(
            f"the address of {scheme}:// has a password, which would be in logs. Leave it out, and put it where fsspec "
            "finds it: its configuration, or the variables of the store's own library"
        )
    if scheme in _OF_BUCKETS and not rest.partition("/")[0]:
        raise ConfigError(f"{address} names no bucket. Expected {scheme}://bucket/folder")
    try:
        fsspec: Any = importlib.import_module("fsspec")
    except ImportError:
        problem = "fsspec is not installed: pip install 'tfdist[storage]'"
    else:
        try:
            fsspec.get_filesystem_class(scheme)
            return _ByFsspec(fsspec, address)
        except (ImportError, ValueError) as error:  # a package that it needs, or an unknown scheme
            problem = f"fsspec says: {error}"
    if scheme in _schemes_of_tensorflow():
        return _ByTensorFlow(address)
    raise ConfigError(
        f"{address} cannot be opened, since nothing that is installed knows {scheme}://. {problem.rstrip('.')}. "
        "Expected the address of a store such as s3://bucket/folder or gs://bucket/folder, or a path"
    )


def _schemes_of_tensorflow() -> list[str]:
    # Whoever is not in a rank, such as the launcher, does not import it for this.
    tensorflow = sys.modules.get("tensorflow")
    return [] if tensorflow is None else list(tensorflow.io.gfile.get_registered_schemes())


class _ByFsspec:
    def __init__(self, fsspec: Any, address: str) -> None:
        # Listings change while we run, by our own writes and by others.
        self._system, root = fsspec.core.url_to_fs(address, use_listings_cache=False)
        self._address, self._root = address.rstrip("/"), str(root).rstrip("/")
        self._bucket = self._root.partition("/")[0] if address.partition("://")[0].lower() in _OF_BUCKETS else None

    def put(self, source: Path, name: str) -> None:
        self._system.put_file(str(source), self._path(name))

    def read(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        if end is None and not begin:
            return bytes(self._system.cat_file(self._path(name)))
        try:
            return bytes(self._system.cat_file(self._path(name), start=begin, end=end))
        except OSError as error:
            # Stores refuse a range that begins at the end, and so any range of an empty object.
            if error.errno == errno.EINVAL and begin >= (self.about(name) or (0,))[0]:
                return b""
            raise

    def about(self, name: str) -> About | None:
        self._system.invalidate_cache()
        try:
            found = self._system.info(self._path(name))
        except FileNotFoundError:
            return None
        version = next((str(found[key]) for key in _VERSIONS if found.get(key)), "")
        return About(int(found["size"]), version) if found["type"] == "file" else None

    def glob(self, pattern: str) -> list[str]:
        self._system.invalidate_cache()
        found = self._system.glob(self._path(pattern), detail=True)
        return list(self._addresses(found))

    def tree(self) -> dict[str, int]:
        self._system.invalidate_cache()
        return self._addresses(self._system.find(self._root, detail=True))

    def has_bucket(self) -> bool:
        self._system.invalidate_cache()
        return self._bucket is None or bool(self._system.exists(self._bucket))

    def sizes(self) -> dict[str, int]:
        self._system.invalidate_cache()
        try:
            found = self._system.ls(self._root, detail=True)
        except FileNotFoundError:
            return {}
        files = [each for each in found if each["type"] == "file"]
        paths = {str(each["name"]): int(each["size"] or 0) for each in files}
        return {path.rpartition("/")[2]: size for path, size in paths.items() if path.rstrip("/") != self._root}

    def remove(self, name: str) -> None:
        self._system.rm_file(self._path(name))

    def _addresses(self, found: dict[str, dict[str, Any]]) -> dict[str, int]:
        files = {str(path): int(about["size"] or 0) for path, about in found.items() if about["type"] == "file"}
        return {self._address + path.removeprefix(self._root): size for path, size in files.items()}

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


class _ByTensorFlow:
    def __init__(self, address: str) -> None:
        self._gfile = sys.modules["tensorflow"].io.gfile
        self._root = address.rstrip("/")

    def put(self, source: Path, name: str) -> None:
        self._gfile.makedirs(self._root)
        self._gfile.copy(str(source), self._path(name), overwrite=True)
        size, wanted = self._gfile.stat(self._path(name)).length, source.stat().st_size
        if size != wanted:
            raise FileExistsError(f"{name} has {size} bytes of {wanted}: it was there, and cannot be replaced")

    def read(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        with self._gfile.GFile(self._path(name), "rb") as file:
            file.seek(begin)
            return bytes(file.read(-1 if end is None else end - begin))

    def about(self, name: str) -> About | None:
        path = self._path(name)
        if not self._gfile.exists(path) or self._gfile.isdir(path):
            return None
        found = self._gfile.stat(path)
        return About(int(found.length), str(found.mtime_nsec))

    def glob(self, pattern: str) -> list[str]:
        return [path for path in self._gfile.glob(self._path(pattern)) if not self._gfile.isdir(path)]

    def tree(self) -> dict[str, int]:
        found = self._gfile.walk(self._root) if self._gfile.isdir(self._root) else ()
        paths = [f"{folder.rstrip('/')}/{name}" for folder, _, names in found for name in names]
        return {path: int(self._gfile.stat(path).length) for path in paths}

    def has_bucket(self) -> bool:
        return True

    def sizes(self) -> dict[str, int]:
        if not self._gfile.isdir(self._root):
            return {}
        names = [name for name in self._gfile.listdir(self._root) if not name.endswith("/")]
        return {name: self._gfile.stat(self._path(name)).length for name in names}

    def remove(self, name: str) -> None:
        if self._gfile.exists(self._path(name)):
            self._gfile.remove(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"
