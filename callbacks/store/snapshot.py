"""Files with the training state: written completely or not at all, verified when read. Independent of the model.

A file (`tfdist.system.whole_file`) holds an `.npz` archive of arrays only: reading it cannot run code.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from tfdist.errors import StoreError
from tfdist.storage import shelf
from tfdist.storage.shelf import Shelf
from tfdist.system.whole_file import DamagedFileError, FileKind

_TYPE = " of type "


def _sha256(parts: Sequence[memoryview]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


# Named by position.
SNAPSHOT = FileKind("snapshot 1", "epoch-%06d-batch-%09d.snapshot", _sha256)


class Position(NamedTuple):
    """The next batch to train on; both numbers count from 0."""

    epoch: int
    batch: int

    def __str__(self) -> str:
        return f"epoch {self.epoch}, batch {self.batch}"


def open_shelf(place: str | os.PathLike[str], what: str) -> Shelf:
    """Opens the snapshots in a folder, or at an address. Raises ConfigError if nothing knows its scheme."""
    return shelf.open_shelf(place, SNAPSHOT, what)


def write(where: Shelf, position: Position, arrays: Mapping[str, Any], keep: int) -> str:
    """Writes a snapshot and removes all but the `keep` newest; returns its path or address.

    Raises:
        OSError: If it cannot be written; existing snapshots are unchanged then.
    """
    buffer = io.BytesIO()
    encoded: dict[str, Any] = dict(_encoded(name, np.asarray(array)) for name, array in arrays.items())
    np.savez(buffer, **encoded)
    return where.write(position, [buffer.getbuffer()], keep)


def decode(data: bytes) -> dict[str, Any]:
    """Decodes the arrays in the bytes of a snapshot.

    Raises:
        DamagedFileError: If they are truncated or corrupt; says how.
    """
    return _arrays(SNAPSHOT.contents(data))


def _arrays(payload: memoryview) -> dict[str, Any]:
    try:
        with np.load(io.BytesIO(payload), allow_pickle=False) as archive:
            return dict(_decoded(name, archive[name]) for name in archive.files)
    except Exception as error:  # a dozen classes, depending on what is wrong with the archive
        raise DamagedFileError(f"its contents cannot be decoded: {type(error).__name__}: {error}") from error


def newest_valid(where: Shelf) -> tuple[Position, dict[str, Any], list[str]] | None:
    """The newest intact snapshot, and a line for each newer one that is damaged; None if there are no snapshots.

    Raises:
        DamagedFileError: If all are damaged.
        StoreError: If the store cannot be read: then a newer one may be intact.
    """
    skipped: list[str] = []
    for volume in where.newest_first():
        try:
            return Position(*volume.numbers), _arrays(volume.read()), skipped
        except StoreError:
            raise
        except (DamagedFileError, OSError) as error:
            skipped.append(f"{volume.name} is skipped: {error}")
    if skipped:
        raise DamagedFileError("; ".join(skipped))
    return None


def _encoded(name: str, array: np.ndarray) -> tuple[str, np.ndarray]:
    """Archives do not support types such as bfloat16: those are stored as raw bits, with the type in the name."""
    if array.dtype.kind != "V":
        return name, array
    return f"{name}{_TYPE}{array.dtype.name}", array.view(f"u{array.dtype.itemsize}")


def _decoded(name: str, array: np.ndarray) -> tuple[str, np.ndarray]:
    name, _, dtype = name.partition(_TYPE)
    return name, array.view(getattr(ml_dtypes, dtype)) if dtype else array
