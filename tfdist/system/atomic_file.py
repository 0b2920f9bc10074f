"""Writes a file so that a reader sees either the old version or the complete new one."""

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


def write_atomically(
    path: str | os.PathLike[str], write: Callable[[Path], object], *, makes_folder: bool = True
) -> None:
    """Lets `write` fill a temporary file, then moves it to `path`.

    The temporary name ends like `path`, because writers choose a format by the extension. File and folder are flushed
    to the disk, so that one of the two versions survives a loss of power.

    Args:
        path: The file to create or replace.
        write: Fills the file whose path it is given.
        makes_folder: Whether missing folders are created.

    Raises:
        ConfigError: If `path` is an address, such as `gs://bucket/file`.
        OSError: If the disk is full, the folder cannot be written, or `path` is a folder. `path` is unchanged then.
    """
    target = local_path(path, "a file to write")
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder; expected the name of a file to write.")
    if makes_folder:
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
    """Creates a folder, and checks that files can be created in it. Ignores a full disk.

    Raises:
        OSError: If it cannot be created or written for any other reason.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise


def need_room(path: Path, size_bytes: int) -> None:
    """Checks that a file can have this size, for a writer that would crash otherwise.

    It writes the first bytes of the file, which the writer replaces. Another process may use up the space in between.

    Raises:
        OSError: If it cannot be written, the disk is too full, or files may not be that large.
    """
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if limit != resource.RLIM_INFINITY and limit < size_bytes:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    with path.open("wb") as file:
        file.write(bytes(min(size_bytes, _PROBE_BYTES)))
        file.flush()
        os.fsync(file.fileno())
    disk = shutil.disk_usage(path.parent)
    if disk.total and disk.free < size_bytes:  # some file systems do not report their size
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def _flush(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
