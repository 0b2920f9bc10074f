"""The lines of the picture, and the picture as a file."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tfdist.command.bench.allreduce import plot
from tfdist.errors import ConfigError


def row(size_bytes: int, compression: str = "none", tensors: int = 1, ranks: int = 2) -> dict[str, Any]:
    rate = size_bytes / 1000 * (1 if compression == "none" else 2)
    return {
        "bytes": size_bytes,
        "tensors": tensors,
        "dtype": "float32",
        "compression": compression,
        "ranks": ranks,
        "algbw_gb_s": rate / 3,
        "busbw_gb_s": rate if ranks > 1 else 0.0,
    }


def test_a_line_a_dtype_and_compression_sorted_by_size() -> None:
    rows = [row(2000), row(2000, "fp16"), row(1000), row(1000, "fp16")]
    assert plot.lines(rows) == {"float32": [(1000, 1.0), (2000, 2.0)], "float32 as fp16": [(1000, 2.0), (2000, 4.0)]}


def test_numbers_of_tensors_are_told_apart() -> None:
    assert list(plot.lines([row(1000), row(1000, tensors=160)])) == ["float32, 1 tensor", "float32, 160 tensors"]


def test_one_rank_has_no_bus() -> None:
    assert plot.lines([row(3000, ranks=1)]) == {"float32": [(3000, 1.0)]}


def test_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot.check(tmp_path / "out.png")
    plot.write(tmp_path / "out.png", [row(1000), row(2000), row(1000, "fp16"), row(2000, "fp16")], "a title")
    data = (tmp_path / "out.png").read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n") and len(data) > 5000


def test_what_to_install_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install matplotlib"):
        plot.check(Path("out.png"))


def test_other_formats_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"ends in \.png"):
        plot.check(Path("out.svg"))
