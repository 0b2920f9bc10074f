"""Loads the scripts of benchmarks/ as modules, which they are not: they belong to no package."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[4] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """`script("compare")` is benchmarks/compare.py, imported as it is when it runs: from its own folder."""

    def load(name: str) -> ModuleType:
        path = BENCHMARKS / name
        monkeypatch.syspath_prepend(str(path.parent))
        return importlib.import_module(path.name)

    return load
