"""Writes a file so that a reader sees the old one or the whole new one. Knows nothing of its contents."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def write_atomically(path: str | os.PathLike[str], write: Callable[[Path], object]) -> None:
    """Has `write` fill a temporary file, then puts it in place of `path`.

    The temporary name ends like `path`, because writers choose a format by the ending. Missing folders are made. File
    and folder are flushed to the disk, so that a machine that loses power has one of the two versions.

    Args:
        path: The file to make or replace.
        write: Fills the file it is given.

    Raises:
        OSError: If the disk is full, the folder cannot be written, or `path` is a folder. `path` is unchanged then.
    """
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder; a file is to be written there.")
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{os.getpid()}.{target.name}")
    try:
        write(temporary)
        _flush(temporary, os.O_RDONLY)
        os.replace(temporary, target)
        _flush(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    finally:
        temporary.unlink(missing_ok=True)


def _flush(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
