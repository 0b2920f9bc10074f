"""The lines of the picture of predictions, and the picture as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tfdist.command.bench.scale import scale_plot


def row(gpus: int, efficiency: float, model: str = "VGG16", **fields: Any) -> dict[str, Any]:
    kind = {"compression": "none", "schedule": "hierarchical", "published_efficiency": None}
    return {"model": model, "batch_size": 64, "gpus": gpus, "efficiency": efficiency} | kind | fields


ROWS = [
    row(8, 0.5, published_efficiency=0.625),
    row(1, 1.0),
    row(1, 1.0, compression="fp16"),
    row(8, 0.75, compression="fp16", published_efficiency=0.625),
    row(8, 0.25, "ResNet101", schedule="flat"),
]


def test_a_line_a_network_and_manner_sorted_by_gpus() -> None:
    assert scale_plot.lines(ROWS) == {
        "VGG16, batch 64, hierarchical": [(1, 100.0), (8, 50.0)],
        "VGG16, batch 64, fp16, hierarchical": [(1, 100.0), (8, 75.0)],
        "ResNet101, batch 64, flat": [(8, 25.0)],
    }


def test_measured_points_once_a_network() -> None:
    assert scale_plot.published(ROWS) == {"VGG16": [(8, 62.5)]}


def test_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    scale_plot.write(tmp_path / "out.png", ROWS, "a title")
    data = (tmp_path / "out.png").read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n") and len(data) > 5000
