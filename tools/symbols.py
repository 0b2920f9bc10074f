#!/usr/bin/env python3
"""The symbol gate of the wheel: each library finds each name that it needs, in all that it is for.

The core has no name of TensorFlow, absl, MPI or Python. A plugin has besides the core's only MPI's. All that an adapter
needs is in the core and in the libraries of each TensorFlow it is for; it loads with RTLD_NOW, so one missing name
would make it useless. Only the tables of the files are read, by `nm`; nothing is loaded or installed.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

# Of the C and C++ libraries and the loader: `nm` shows their names with such a version, or as weak. Some names of
# TensorFlow have a version too.
_SYSTEM = re.compile(r"@@?(GLIBC|GLIBCXX|CXXABI|GCC)_")
_FOREIGN = re.compile(r"tensorflow|absl|_ZN?K?3tsl|_ZN?K?3xla|^P?MPIX?_|^ompi_|^_?Py[A-Z_]")
_OF_MPI = re.compile(r"^P?MPIX?_|^ompi_")


class SymbolError(SystemExit):
    """A library needs a name that is not there, or should not need it."""


def needed(library: Path) -> set[str]:
    """The names that a library takes from others, without those of the system."""
    lines = _nm("--undefined-only", library)
    return {name.partition("@")[0] for kind, name in lines if kind == "U" and not _SYSTEM.search(name)}


def defined(library: Path) -> set[str]:
    """The names that a library gives to others."""
    return {name.partition("@")[0] for _, name in _nm("--defined-only", library)}


def check(libraries: Path, tensorflows: dict[str, dict[str, set[str]]]) -> None:
    """Checks all libraries of a folder.

    Args:
        libraries: The folder with the core, the plugins and the adapters.
        tensorflows: By minor, the names that each release defines for which its adapter is.

    Raises:
        SymbolError: If any check fails; the message has the library, the names and where they are missing.
    """
    core = libraries / "libtfdist_core.so"
    given = defined(core)
    _expect(core, needed(core), set(), "the C and C++ libraries")
    for plugin in sorted(libraries.glob("libtfdist_mpi_*.so")):
        _expect(plugin, {name for name in needed(plugin) if not _OF_MPI.search(name)}, given, "the core and MPI")
    for minor, releases in tensorflows.items():
        adapter = libraries / f"libtfdist_tf{minor}.so"
        for release, there in releases.items():
            _expect(adapter, needed(adapter), given | there, f"{release} and the core")
    for name in sorted(given | needed(core)):
        if _FOREIGN.search(name) and not name.startswith(("_ZN6tfdist", "_ZNK6tfdist", "tfdist_")):
            raise SymbolError(f"{core.name} has the name {name}, which is none of its affairs")


def _expect(library: Path, names: set[str], there: set[str], where: str) -> None:
    if missing := sorted(names - there):
        shown = "\n  ".join(missing[:10])
        raise SymbolError(f"{library.name} needs {len(missing)} names that are not in {where}:\n  {shown}")


def _nm(which: str, library: Path) -> list[tuple[str, str]]:
    """Pairs of the kind and the name of each dynamic symbol."""
    done = subprocess.run(
        ["nm", "--dynamic", which, "--format=posix", str(library)], capture_output=True, text=True, check=True
    )
    return [(words[1], words[0]) for words in (line.split() for line in done.stdout.splitlines()) if len(words) > 1]
