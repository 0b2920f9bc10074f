"""Commits as tests write them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tfdist.protocol.commit_file import COMMIT


@pytest.fixture
def put() -> Callable[[Path, int, int, bytes], Path]:
    """Writes a commit into a folder: its training, its number and its contents."""

    def write(folder: Path, training: int, number: int, text: bytes) -> Path:
        folder.mkdir(exist_ok=True)
        path = folder / (COMMIT.template % (training, number))
        path.write_bytes(COMMIT.header([memoryview(text)]) + text)
        return path

    return write
