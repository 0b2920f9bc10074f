"""The journal of a dispatcher as a file: its records, and the repair of an incomplete last one.

A dispatcher that is killed while writing leaves a truncated record. If it is truncated after its length field,
TensorFlow refuses to start from then on. The dispatcher had not yet acknowledged that record, so removing it loses
nothing that any client relies on.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tfdist.errors import ConfigError

FOLDER = "tf_data_dispatcher_journal"
_FILE = re.compile(r"journal_([0-9]+)")
# A record is its length, a checksum of the length, the data, and a checksum of the data.
_HEAD = struct.Struct("<QI")
_TAIL_BYTES = 4
_CASTAGNOLI = 0x82F63B78
_WORD = 0xFFFFFFFF


@dataclass(frozen=True)
class Cut:
    """What was truncated from a journal.

    Attributes:
        path: The file.
        at: Bytes that remain.
        removed: Bytes that were removed.
    """

    path: Path
    at: int
    removed: int


def files(work_dir: str) -> tuple[Path, ...]:
    """The files of a journal, in the order TensorFlow reads them; each start of a dispatcher may add one."""
    folder = Path(work_dir) / FOLDER
    found = {int(match[1]): path for path in folder.glob("journal_*") if (match := _FILE.fullmatch(path.name))}
    return tuple(found[number] for number in sorted(found))


def cut_unfinished(work_dir: str) -> Cut | None:
    """Removes the last record of a journal if it is truncated where TensorFlow would refuse to start.

    A fragment shorter than a length and its checksum stays: TensorFlow skips it. So does anything that is not the start
    of a record: that is corruption, which TensorFlow should report.

    Args:
        work_dir: The dispatcher's.

    Returns:
        What was removed; None if nothing.

    Raises:
        ConfigError: If the file cannot be read or written.
    """
    found = files(work_dir)
    if not found:
        return None
    try:
        return _cut(found[-1])
    except OSError as error:
        raise ConfigError(
            f"the journal {found[-1]} cannot be used: {error.strerror}. The dispatcher must be able to read and "
            "write it."
        ) from None


def _cut(path: Path) -> Cut | None:
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        at = max((stop for _, stop in _spans(file, 0)), default=0)
        file.seek(at)
        if end - at < _HEAD.size or not _is_length(file.read(_HEAD.size)):
            return None
        file.truncate(at)
        os.fsync(file.fileno())
    return Cut(path, at, end - at)


def records(path: Path, start: int = 0) -> Iterator[tuple[bytes, int]]:
    """The data of each complete record of a file, and the offset at which it ends. Checksums are left to TensorFlow.

    Args:
        path: The file; another process may be writing at its end.
        start: The byte to begin at, where a record begins.

    Raises:
        OSError: If it cannot be read.
    """
    with path.open("rb") as file:
        for data, stop in _spans(file, start):
            file.seek(data)
            yield file.read(stop - data - _TAIL_BYTES), stop


def _spans(file: BinaryIO, start: int) -> Iterator[tuple[int, int]]:
    """Where the data of each complete record begins, and where the record ends."""
    end, at = os.fstat(file.fileno()).st_size, file.seek(start)
    while len(head := file.read(_HEAD.size)) == _HEAD.size:
        stop = at + _HEAD.size + int(_HEAD.unpack(head)[0]) + _TAIL_BYTES
        if stop > end:
            return
        yield at + _HEAD.size, stop
        at = file.seek(stop)


def _is_length(head: bytes) -> bool:
    """Whether a length matches the checksum after it, so that it is not corrupt."""
    crc = _WORD
    for byte in head[:8]:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (_CASTAGNOLI if crc & 1 else 0)
    crc ^= _WORD
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & _WORD == _HEAD.unpack(head)[1]
