"""The files of installed packages, such as a library in a wheel."""

from __future__ import annotations

from pathlib import Path


def find(package: str, name: str) -> list[str]:
    """The paths of a package's files of this name; empty if it is not installed or has none."""
    from importlib import metadata  # takes 30 ms, so not at `import tfdist`

    try:
        files = metadata.distribution(package).files or []
    except metadata.PackageNotFoundError:
        return []
    return [str(Path(str(file.locate())).resolve()) for file in files if Path(str(file)).name == name]
