"""Files that hold the state of a training: written whole or not at all, checked when read. Knows no model.

A file is the line "tfdist snapshot 1 SHA256 BYTES" and an `.npz` archive of that many bytes. Arrays only: nothing in it
can run when it is read.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tfdist.system.atomic_file import write_atomically

_MAGIC = b"tfdist snapshot 1"
_HEADER = re.compile(rb"tfdist snapshot 1 ([0-9a-f]{64}) (\d{1,18})\n")
_TYPE = " of type "
_NAME = re.compile(r"epoch-(\d+)-batch-(\d+)\.snapshot")
# As `write_atomically` names it.
_UNFINISHED = re.compile(rf"\..+\.\d+\.{_NAME.pattern}")


class SnapshotError(ValueError):
    """A file is not a whole snapshot."""


@dataclass(frozen=True)
class Position:
    """The next batch to train on; both count from 0."""

    epoch: int
    batch: int

    def __str__(self) -> str:
        return f"epoch {self.epoch}, batch {self.batch}"


def write(folder: Path, position: Position, arrays: Mapping[str, Any], keep: int) -> Path:
    """Writes a snapshot and removes all but the `keep` newest.

    Raises:
        OSError: If it cannot be written; the earlier ones are unchanged then.
    """
    buffer = io.BytesIO()
    encoded: dict[str, Any] = dict(_encoded(name, np.asarray(array)) for name, array in arrays.items())
    np.savez(buffer, **encoded)
    payload = buffer.getbuffer()
    header = b"%s %s %d\n" % (_MAGIC, hashlib.sha256(payload).hexdigest().encode(), len(payload))
    path = folder / f"epoch-{position.epoch:06d}-batch-{position.batch:09d}.snapshot"
    write_atomically(path, lambda temporary: _fill(temporary, header, payload))
    for old in list_newest_first(folder)[keep:]:
        old.unlink(missing_ok=True)
    return path


def remove_unfinished(folder: Path) -> None:
    """Removes what killed processes have begun to write. Nobody may be writing there."""
    for path in folder.glob(".*.snapshot"):
        if _UNFINISHED.fullmatch(path.name):
            path.unlink(missing_ok=True)


def list_newest_first(folder: Path) -> list[Path]:
    """The snapshots in a folder, furthest in training first."""
    found = [path for path in folder.glob("*.snapshot") if _NAME.fullmatch(path.name)]
    return sorted(found, key=lambda path: (position_of(path).epoch, position_of(path).batch), reverse=True)


def position_of(path: Path) -> Position:
    """The position that the name of a snapshot says."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise SnapshotError(f"{path.name} is not the name of a snapshot")
    return Position(int(match.group(1)), int(match.group(2)))


def read(path: Path) -> dict[str, Any]:
    """The arrays of a snapshot.

    Raises:
        SnapshotError: If the file is torn, truncated or changed; says how.
        OSError: If it cannot be read.
    """
    return decode(path.read_bytes())


def decode(data: bytes) -> dict[str, Any]:
    """The arrays in the bytes of a snapshot.

    Raises:
        SnapshotError: If they are torn, truncated or changed; says how.
    """
    match = _HEADER.match(data)
    if match is None:
        raise SnapshotError("it does not begin like a snapshot")
    payload = data[match.end() :]
    if len(payload) != int(match.group(2)):
        raise SnapshotError(f"it has {len(payload)} bytes of {int(match.group(2))}")
    if hashlib.sha256(payload).hexdigest().encode() != match.group(1):
        raise SnapshotError("its checksum does not fit its contents")
    try:
        with np.load(io.BytesIO(payload), allow_pickle=False) as archive:
            return dict(_decoded(name, archive[name]) for name in archive.files)
    except Exception as error:  # of a dozen classes, by what is wrong with the archive
        raise SnapshotError(f"its contents cannot be decoded: {type(error).__name__}: {error}") from error


def newest_valid(folder: Path) -> tuple[Position, dict[str, Any], list[str]] | None:
    """The newest snapshot that can be read, and a line for each newer one that cannot; None without any."""
    skipped: list[str] = []
    for path in list_newest_first(folder):
        try:
            return position_of(path), read(path), skipped
        except (SnapshotError, OSError) as error:
            skipped.append(f"{path} is skipped: {error}")
    if skipped:
        raise SnapshotError("; ".join(skipped))
    return None


def _fill(path: Path, header: bytes, payload: memoryview) -> None:
    with path.open("wb") as file:
        file.write(header)
        file.write(payload)


def _encoded(name: str, array: np.ndarray) -> tuple[str, np.ndarray]:
    """An archive has no name for types such as bfloat16, so they go in as their bits, with the type in the name."""
    if array.dtype.kind != "V":
        return name, array
    return f"{name}{_TYPE}{array.dtype.name}", array.view(f"u{array.dtype.itemsize}")


def _decoded(name: str, array: np.ndarray) -> tuple[str, np.ndarray]:
    name, _, dtype = name.partition(_TYPE)
    return name, array.view(getattr(ml_dtypes, dtype)) if dtype else array
