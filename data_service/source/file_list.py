"""Which files a source reads. Opens none."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path

from tfdist.errors import ConfigError
from tfdist.system.local_path import local_path


def find(source: str, files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], suffix: str) -> list[str]:
    """Absolute paths of the files that are meant, in the order in which they are named; those of a pattern sorted.

    Args:
        source: Name of the function, for messages.
        files: A path, a pattern such as "data/*.parquet", a folder, or a list of them.
        suffix: Which files of a folder are meant, such as ".parquet".

    Raises:
        ConfigError: If there are none, or one is named twice.
    """
    named = [files] if isinstance(files, (str, os.PathLike)) else list(files)
    found: list[str] = []
    for given in named:
        name = str(local_path(given, f"{source}: each file", "have workers mount the store"))
        matches = _matches(name, suffix)
        if not matches:
            raise ConfigError(
                f"{source}: there are no files for {name!r} (from {os.getcwd()}). It must be a file, a pattern such as "
                f"'data/*{suffix}', or a folder with files that end in {suffix}."
            )
        found += map(os.path.abspath, matches)
    twice = sorted({path for path in found if found.count(path) > 1}) if len(set(found)) < len(found) else []
    if not found or twice:
        raise ConfigError(f"{source}: files must name each file once; received {named}, twice are {twice[:3]}.")
    return found


def _matches(name: str, suffix: str) -> list[str]:
    path = Path(name)
    if path.is_file():
        return [name]
    if path.is_dir():
        return sorted(str(file) for file in path.iterdir() if file.name.endswith(suffix) and file.is_file())
    return sorted(filter(os.path.isfile, glob.glob(name)))
