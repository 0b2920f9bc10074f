"""Writes a file so that a reader sees the old one or the whole new one. Knows nothing of its contents."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from tfdist.system.local_path import local_path

_PROBE_BYTES = 1 << 16


def write_atomically(path: str | os.PathLike[str], write: Callable[[Path], object]) -> None:
    """Has `write` fill a temporary file, then puts it in place of `path`.

    The temporary name ends like `path`, because writers choose a format by the ending. Missing folders are made. File
    and folder are flushed to the disk, so that a machine that loses power has one of the two versions.

    Args:
        path: The file to make or replace.
        write: Fills the file it is given.

    Raises:
        ConfigError: If `path` is an address, such as `gs://bucket/file`.
        OSError: If the disk is full, the folder cannot be written, or `path` is a folder. `path` is unchanged then.
    """
    target = local_path(path, "a file to write")
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder; a file is to be written there.")
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{os.uname().nodename}.{os.getpid()}.{target.name}")
    try:
        write(temporary)
        _flush(temporary, os.O_RDONLY)
        os.replace(temporary, target)
        _flush(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    finally:
        temporary.unlink(missing_ok=True)


def need_folder(folder: Path) -> None:
    """Makes a folder, and makes sure that files can be made in it. A disk without room is none of its concern.

    Raises:
        OSError: If it cannot be made or written, for another reason than that.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise


def need_room(path: Path, size_bytes: int) -> None:
    """Makes sure that a file can have this size, for a writer that does not live through it where it cannot.

    It writes the first bytes of the file, which the writer replaces. Another process may take the room in between.

    Raises:
        OSError: If it cannot be written, the disk has less room, or files may not be as large.
    """
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if limit != resource.RLIM_INFINITY and limit < size_bytes:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    with path.open("wb") as file:
        file.write(bytes(min(size_bytes, _PROBE_BYTES)))
        file.flush()
        os.fsync(file.fileno())
    disk = shutil.disk_usage(path.parent)
    if disk.total and disk.free < size_bytes:  # some file systems say nothing of their size
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def _flush(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
