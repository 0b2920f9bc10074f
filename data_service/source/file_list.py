"""Resolves which files a source reads. Opens none."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path

from tfdist.errors import ConfigError
from tfdist.storage import reading
from tfdist.system.local_path import address_of, local_path

# Names of a folder that a message has.
_SHOWN = 3


def find(
    source: str, files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], suffix: str, stores: bool = False
) -> list[str]:
    """The absolute paths or addresses of the files, in the order given; those of a pattern are sorted.

    Args:
        source: Name of the function, for messages.
        files: A path, a pattern such as "data/*.parquet", a folder, or a list of them.
        suffix: Suffix of the files to read from a folder, such as ".parquet".
        stores: Whether they may be in an object store.

    Raises:
        ConfigError: If there are none, or one is given twice.
        StoreError: If a store cannot be read.
    """
    named = [files] if isinstance(files, (str, os.PathLike)) else list(files)
    found: list[str] = []
    for given in named:
        address = address_of(given) if stores else None
        name = address or str(local_path(given, f"{source}: each file", "mount the store on the workers"))
        matches = _matches(name, suffix) if address is None else reading.find(address, suffix)
        if not matches:
            raise ConfigError(
                f"{source}: found no files for {name!r}: {_why(name, address, suffix)}. Expected a file, a pattern "
                f"such as 'data/*{suffix}', or a folder with files that end in {suffix}."
            )
        found += map(os.path.abspath, matches) if address is None else matches
    twice = sorted({path for path in found if found.count(path) > 1}) if len(set(found)) < len(found) else []
    if not found or twice:
        raise ConfigError(
            f"{source}: expected one or more files, each given once; received {named}; given twice: {twice[:3]}."
        )
    return found


def some(names: Sequence[str]) -> str:
    """The first names, for a message."""
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")


def _why(name: str, address: str | None, suffix: str) -> str:
    """Why there is no match."""
    where = "" if address or os.path.isabs(name) else f" (working directory: {os.getcwd()})"
    if glob.has_magic(name):
        return f"nothing matches this pattern{where}"
    others = reading.names(name) if address else sorted(os.listdir(name)) if os.path.isdir(name) else []
    if others:
        named = some(list(map(os.path.basename, others)))
        return f"this folder has no file that ends in {suffix}, but {len(others)} other names ({named})"
    if address is None and os.path.isdir(name):
        return f"this folder is empty{where}"
    return (
        f"there is no such file or folder{where}" if address is None else "there is no such object, and none below it"
    )


def _matches(name: str, suffix: str) -> list[str]:
    path = Path(name)
    if path.is_file():
        return [name]
    if path.is_dir():
        return sorted(str(file) for file in path.iterdir() if file.name.endswith(suffix) and file.is_file())
    return sorted(filter(os.path.isfile, glob.glob(name, recursive=True)))  # `**` is any depth, as in a store
