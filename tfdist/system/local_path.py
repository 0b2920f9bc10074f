"""Paths of this machine's file systems, as users give them. Opens none, and reaches no object store.

`pathlib` takes `gs://bucket/run` for a folder `gs:` here, and what was meant for a store is lost with the machine.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from tfdist.errors import ConfigError

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_HERE = re.compile(r"file://(localhost)?/", re.IGNORECASE)
# What is left of an address that went through `pathlib.Path`; only of stores that are known by name.
_STORES = ("gs", "gcs", "s3", "s3a", "s3n", "hdfs", "webhdfs", "viewfs", "abfs", "abfss", "wasbs", "az", "oss")
_FLAT_ADDRESS = re.compile(rf"({'|'.join(_STORES)}):/")


def problem_of(path: str | os.PathLike[str]) -> str | None:
    """What keeps a path from being one of this machine; None if it is one."""
    text = os.fsdecode(path)
    match = _ADDRESS.match(text) or (None if isinstance(path, str) else _FLAT_ADDRESS.match(text))
    if match is None or _HERE.match(text):
        return None
    return (
        f"must be a path on a disk of this machine or on a file system that is mounted here (NFS, Lustre, a bucket "
        f"through FUSE); {match[1]}:// is neither. Write to such a path, and copy what is there to the store"
    )


def local_path(path: str | os.PathLike[str], what: str, otherwise: str = "") -> Path:
    """The path, without `file://`.

    Args:
        path: What the user gave.
        what: What it was given as, such as the name of the argument.
        otherwise: What else the user can do, for the error.

    Raises:
        ConfigError: If it is the address of an object store or of another machine, such as `gs://bucket/run`.
    """
    problem = problem_of(path)
    if problem:
        raise ConfigError(f"{what} {problem}{otherwise and f', or {otherwise}'}; received {os.fsdecode(path)!r}.")
    return Path(_HERE.sub("/", os.fsdecode(path)))
