#!/usr/bin/env python3
"""Prints the path of the wheel in dist/ if it was made from these sources; else nothing, and on stderr why.

    built_wheel.py                       looks at all sources
    built_wheel.py --libraries FOLDER    copies the libraries to FOLDER if they are of these C++ sources; else status 1

`make demo`, `make setup` and the images take that wheel instead of compiling. One from other sources would run old code
without a word, so every Python file is compared, pyproject.toml with that of the source distribution beside the wheel,
and the name of the C++ sources that the libraries hold.
"""

from __future__ import annotations

import argparse
import platform
import re
import sys
import tarfile
import zipfile
from pathlib import Path

import build_environment

# By the folder in the wheel, the longest first.
FOLDERS = {"tfdist/callbacks/": "callbacks/", "tfdist/data_service/": "data_service/", "tfdist/": "tfdist/"}


def difference(wheel: Path, sources: Path, *, python: bool = True) -> str:
    """Why the wheel is not of these sources, in C++ alone or also in Python; empty if it is."""
    with zipfile.ZipFile(wheel) as archive:
        held = {name: archive.read(name) for name in archive.namelist() if name.endswith((".py", "_core.so"))}
    record = re.search(rb'\{"build": "(\w+)"', held["tfdist/libtfdist_core.so"])
    if record is None or record.group(1).decode() != build_environment.build_id(sources):
        return "its libraries are of other C++ sources"
    return _other_file(wheel, sources, held) if python else ""


def _other_file(wheel: Path, sources: Path, held: dict[str, bytes]) -> str:
    """Which Python file, or pyproject.toml, is not that of the sources; empty if all are."""
    wanted = {}
    for inside, folder in FOLDERS.items():
        for path in (sources / folder).rglob("*.py"):
            wanted[inside + str(path.relative_to(sources / folder))] = path.read_bytes()
    modules = {name: text for name, text in held.items() if name.endswith(".py")}
    other = sorted(name for name in wanted | modules if wanted.get(name) != modules.get(name))
    if not other and not _has_these_requirements(wheel.parent, sources):
        other = ["pyproject.toml"]
    return f"{other[0]} differs" if other else ""


def _has_these_requirements(folder: Path, sources: Path) -> bool:
    """Whether the source distribution that was written with a wheel has this pyproject.toml, as the wheel then has."""
    for path in folder.glob("tfdist-*.tar.gz"):
        with tarfile.open(path) as archive:
            held = archive.extractfile(f"{path.name.removesuffix('.tar.gz')}/pyproject.toml")
            return held is not None and held.read() == (sources / "pyproject.toml").read_bytes()
    return False


def find(sources: Path, *, python: bool = True) -> Path | None:
    """The wheel in dist/ for this kind of machine, if it is of these sources."""
    for wheel in sorted((sources / "dist").glob(f"tfdist-*_{platform.machine()}.whl")):
        why = difference(wheel, sources, python=python)
        if not why:
            return wheel
        print(f"dist/{wheel.name} is not of these sources: {why}. `make wheels` makes it anew", file=sys.stderr)
    return None


def main(words: list[str], sources: Path = Path(__file__).parents[1]) -> int:
    parser = argparse.ArgumentParser(prog="built_wheel.py")
    parser.add_argument("--libraries", type=Path, metavar="FOLDER", help="copy the libraries there")
    folder = parser.parse_args(words).libraries
    wheel = find(sources, python=folder is None)
    if wheel is None:
        return 0 if folder is None else 1
    if folder is None:
        print(wheel)
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".so"):
                (folder / Path(name).name).write_bytes(archive.read(name))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
