"""A folder of libraries that hold nothing but their record."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tfdist.native import build


@pytest.fixture
def make_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Takes the place of the installed libraries: `make_library("tf2.21", tensorflow="2.21.0")`; `build` is "one"."""
    monkeypatch.setattr(build, "FOLDER", tmp_path)

    def make(name: str, **fields: str) -> Path:
        path = tmp_path / f"libtfdist_{name}.so"
        path.write_bytes(b"\x7fELF\0" + json.dumps({"build": "one", "compiler": "GNU 12", **fields}).encode() + b"\0")
        return path

    make("core")
    return make
