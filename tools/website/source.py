"""The Python sources under the names they are installed as; read as text, never imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Folders of the checkout and the packages they are installed as.
PACKAGES = {"tfdist": "tfdist", "callbacks": "tfdist.callbacks", "data_service": "tfdist.data_service"}


@dataclass(frozen=True)
class Module:
    """One source file."""

    name: str
    path: Path

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.path.read_text())


def modules(root: Path = ROOT) -> Iterator[Module]:
    """All modules, by name."""
    found = []
    for folder, package in PACKAGES.items():
        for path in (root / folder).rglob("*.py"):
            parts = path.relative_to(root / folder).with_suffix("").parts
            found.append(Module(".".join((package, *(parts[:-1] if parts[-1] == "__init__" else parts))), path))
    yield from sorted(found, key=lambda module: module.name)


def path_of(package: str, root: Path = ROOT) -> Path:
    """The file of a package or module, named as it is installed."""
    for folder, installed in sorted(PACKAGES.items(), key=lambda item: -len(item[1])):
        if package == installed or package.startswith(f"{installed}."):
            place = (root / folder).joinpath(*package.removeprefix(installed).strip(".").split("."))
            return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    raise ValueError(f"{package} is no module of {', '.join(PACKAGES.values())}")
