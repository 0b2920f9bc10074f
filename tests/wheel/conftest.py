"""The wheel that `make wheels` has built, and a root without a compiler."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bare_root import CACHE, ROOT, Bare, find_interpreter, make_root


@pytest.fixture(scope="session")
def wheel() -> Path:
    (found,) = (ROOT / "dist").glob("*_x86_64.whl")
    return found


@pytest.fixture
def bare() -> Iterator[Callable[[str], Bare]]:
    """`bare("3.11")`: the root with that interpreter and without what an earlier test installed in it."""
    root = make_root(CACHE / "bare", "bookworm")
    places = [root / name for name in ("wheels", "venv", "project")]

    def clear() -> None:
        for place in places:
            shutil.rmtree(place, ignore_errors=True)

    def enter(version: str) -> Bare:
        program = find_interpreter(version)
        if program is None:
            pytest.skip(f"there is no python{version} with ensurepip on this machine")
        return Bare(root, program.parents[1], str(program))

    clear()
    for name in ("examples", "tests"):
        shutil.copytree(ROOT / name, root / "project" / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", root / "project")
    yield enter
    clear()
