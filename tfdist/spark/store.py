"""The place of an Estimator's data, checkpoints and logs, which the driver and all executors reach."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfdist.errors import ConfigError
from tfdist.storage import store as objects
from tfdist.system.atomic_file import write_atomically
from tfdist.system.local_path import address_of, local_path

__all__ = ["DBFSLocalStore", "FilesystemStore", "LocalStore", "Store"]

# Of an object store, which has no folders: there while a folder may be written to.
_MARK = "tfdist.open"
_DBFS = re.compile(r"dbfs:/+")


class Store:
    """A folder that the driver and all executors reach: on a shared file system, or in an object store.

    Horovod's `LocalStore`, `FilesystemStore` and `DBFSLocalStore` are this class.

    Args:
        prefix_path: A path, or an address such as "s3://bucket/folder" (`pip install 'tfdist[storage]'`). "dbfs:/x" is
            "/dbfs/x", where Databricks mounts it.
        train_path: Where the rows to train on are while a model is trained; default: a folder in `prefix_path`.
        val_path: Where the rows to validate with are.
        runs_path: Where checkpoints, backups and logs are kept.
        save_runs: Whether to keep them.

    Raises:
        ConfigError: If a path is empty.

    Example:

    ```python
    store = Store.create("s3://bucket/digits")
    estimator = tfdist.spark.keras.KerasEstimator(store=store, ...)
    ```
    """

    def __init__(
        self,
        prefix_path: str | os.PathLike[str],
        train_path: str | os.PathLike[str] | None = None,
        val_path: str | os.PathLike[str] | None = None,
        runs_path: str | os.PathLike[str] | None = None,
        save_runs: bool = True,
    ) -> None:
        self.prefix_path = _place("prefix_path", prefix_path)
        self._train = _place("train_path", train_path or f"{self.prefix_path}/intermediate_train_data")
        self._val = _place("val_path", val_path or f"{self.prefix_path}/intermediate_val_data")
        self._runs = _place("runs_path", runs_path or f"{self.prefix_path}/runs")
        self._save_runs = save_runs

    @staticmethod
    def create(prefix_path: str | os.PathLike[str], **options: object) -> Store:
        """The store at a path or an address; `options` are those of `Store`."""
        return Store(prefix_path, **options)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return f"Store({self.prefix_path!r})"

    def get_train_data_path(self) -> str:
        """Where the rows to train on are while a model is trained."""
        return self._train

    def get_val_data_path(self) -> str:
        """Where the rows to validate with are while a model is trained."""
        return self._val

    def get_runs_path(self) -> str:
        """The folder of all runs."""
        return self._runs

    def get_run_path(self, run_id: str) -> str:
        """The folder of a run."""
        return f"{self._runs}/{run_id}"

    def get_checkpoint_filename(self) -> str:
        """The name of a run's checkpoint: a whole model with its optimizer."""
        return "checkpoint.keras"

    def get_checkpoint_path(self, run_id: str) -> str:
        """The checkpoint of a run."""
        return f"{self.get_run_path(run_id)}/{self.get_checkpoint_filename()}"

    def get_logs_subdir(self) -> str:
        """The name of the folder of a run's logs, a CSV file for each fit."""
        return "logs"

    def get_logs_path(self, run_id: str) -> str:
        """The folder of a run's logs."""
        return f"{self.get_run_path(run_id)}/{self.get_logs_subdir()}"

    def saving_runs(self) -> bool:
        """Whether checkpoints, backups and logs are kept."""
        return self._save_runs

    def exists(self, path: str) -> bool:
        """Whether there is a file. Raises StoreError."""
        if address_of(path) is None:
            return Path(path).is_file()
        folder, name = _object(path)
        return folder.size(name) is not None

    def read(self, path: str) -> bytes:
        """The contents of a file. Raises OSError."""
        return read(path)


LocalStore = FilesystemStore = DBFSLocalStore = Store


def opened(given: Any) -> Store:
    """A store as it is, or that at a path or an address. Raises ConfigError."""
    if isinstance(given, (Store, str, os.PathLike)):
        return given if isinstance(given, Store) else Store(given)
    raise ConfigError(f"expected a Store, or its path or address; received {given!r}.")


def read(path: str) -> bytes:
    """The contents of a file at a path or an address. Raises OSError."""
    if address_of(path) is None:
        return Path(path).read_bytes()
    folder, name = _object(path)
    return folder.read(name, 0, folder.size(name))


def put(source: Path, path: str) -> None:
    """Copies a file to a path or an address, completely or not at all. Raises OSError."""
    if address_of(path) is None:
        write_atomically(path, lambda temporary: shutil.copyfile(source, temporary))
    else:
        folder, name = _object(path)
        folder.put(source, name)


def write(data: bytes, path: str, put: Callable[[Path, str], None] = put) -> None:
    """Writes a file at a path or an address, as `put` or `add` do. Raises OSError."""
    with tempfile.TemporaryDirectory(prefix="tfdist-") as folder:
        file = Path(folder) / "file"
        file.write_bytes(data)
        put(file, path)


def open_folder(folder: str) -> None:
    """Makes a folder to which `add` writes until it is removed. Raises OSError."""
    if address_of(folder) is None:
        Path(folder).mkdir(parents=True)
    else:
        with tempfile.NamedTemporaryFile(prefix="tfdist-") as empty:
            objects.Store(folder).put(Path(empty.name), _MARK)


def add(source: Path, path: str) -> None:
    """As `put`, to a folder that is there: what runs longer than its fit must not write after the removal.

    Raises:
        FileNotFoundError: If the folder was removed.
        OSError: If it cannot be written.
    """
    if address_of(path) is None:
        write_atomically(path, lambda temporary: shutil.copyfile(source, temporary), makes_folder=False)
        return
    folder, name = _object(path)
    if folder.size(_MARK) is None:
        raise FileNotFoundError(f"{path} was not written, because its folder was removed")
    folder.put(source, name)


def remove_file(path: str) -> None:
    """Removes a file at a path or an address, if it is there. Raises OSError."""
    if address_of(path) is None:
        Path(path).unlink(missing_ok=True)
    else:
        folder, name = _object(path)
        folder.remove(name)


def remove(folder: str) -> None:
    """Removes a folder with all that is in it, if it is there. Raises OSError."""
    if address_of(folder) is None:
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            if Path(folder).exists():  # somebody else has removed a part of it meanwhile
                raise
    else:
        opened = objects.Store(folder)
        opened.remove(_MARK)
        for name in opened.sizes():
            opened.remove(name)


def _object(address: str) -> tuple[objects.Store, str]:
    """The folder of an object, and its name in there."""
    folder, _, name = address.rpartition("/")
    return objects.Store(folder), name


def _place(what: str, path: str | os.PathLike[str]) -> str:
    text = _DBFS.sub("/dbfs/", os.fsdecode(path), count=1) if _DBFS.match(os.fsdecode(path)) else os.fsdecode(path)
    if not text:
        raise ConfigError(f"Store: {what} must be a path or an address; received an empty text.")
    address = address_of(text)
    return address.rstrip("/") if address else os.path.abspath(local_path(text, what))
