"""Checks that paths given by users are on this machine's file systems, and not in an object store.

`pathlib` would treat `gs://bucket/run` as a local folder `gs:`, and the data would be lost with the machine.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from tfdist.errors import ConfigError

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_HERE = re.compile(r"file://(localhost)?/", re.IGNORECASE)
# What is left of an address after `pathlib.Path`; only for stores that are known by name.
_STORES = ("gs", "gcs", "s3", "s3a", "s3n", "hdfs", "webhdfs", "viewfs", "abfs", "abfss", "wasbs", "az", "oss")
_FLAT_ADDRESS = re.compile(rf"({'|'.join(_STORES)}):/")


def address_of(path: str | os.PathLike[str]) -> str | None:
    """The address of a place in a store, such as `s3://bucket/run`; None if a path is on this machine.

    `pathlib.Path("s3://bucket/run")` has one slash less, and is the same address; so is a text like it.
    """
    text = os.fsdecode(path)
    if _HERE.match(text):
        return None
    match = _ADDRESS.match(text) or _FLAT_ADDRESS.match(text)
    return None if match is None else f"{match[1].lower()}://{text[match.end() :]}"


def problem_of(path: str | os.PathLike[str]) -> str | None:
    """Why a path is not on this machine; None if it is."""
    address = address_of(path)
    if address is None:
        return None
    return (
        f"must be a path on a disk of this machine or on a mounted file system (NFS, Lustre, a bucket through FUSE); "
        f"{address.partition('://')[0]}:// is neither. Write to such a path, and copy the files to the store"
    )


def local_path(path: str | os.PathLike[str], what: str, otherwise: str = "") -> Path:
    """Returns the path, without `file://`.

    Args:
        path: What the user gave.
        what: What the path is for, such as the name of the argument.
        otherwise: An alternative for the user, for the error.

    Raises:
        ConfigError: If it is the address of an object store or of another machine, such as `gs://bucket/run`.
    """
    problem = problem_of(path)
    if problem:
        raise ConfigError(f"{what} {problem}{otherwise and f', or {otherwise}'}; received {os.fsdecode(path)!r}.")
    return Path(_HERE.sub("/", os.fsdecode(path)))
