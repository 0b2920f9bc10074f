"""Plots the rows of `tfdist bench allreduce`, bandwidth over size, with matplotlib."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfdist.command.bench.measure import size
from tfdist.errors import ConfigError

Row = Mapping[str, Any]


def check(path: Path) -> None:
    """Raises ConfigError if plotting would fail; called before anything is measured."""
    if path.suffix != ".png":
        raise ConfigError(f"--plot {path}: only PNG is supported; use a name that ends in .png")
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib, which is not installed; install it with: pip install matplotlib")


def lines(rows: Sequence[Row]) -> dict[str, list[tuple[int, float]]]:
    """The points (bytes, GB/s) of each line, by label; for a single rank, which has no bus, the algorithm bandwidth."""
    tensors = len({row["tensors"] for row in rows})
    found: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        label = row["dtype"] if row["compression"] == "none" else f"{row['dtype']} as {row['compression']}"
        if tensors > 1:
            label += f", {row['tensors']} tensor{'s' * (row['tensors'] != 1)}"
        rate = row["busbw_gb_s"] if row["ranks"] > 1 else row["algbw_gb_s"]
        found.setdefault(label, []).append((row["bytes"], rate))
    return {label: sorted(points) for label, points in found.items()}


def write(path: Path, rows: Sequence[Row], title: str) -> None:
    """Plots to a file; needs no display."""
    import matplotlib.figure

    figure = matplotlib.figure.Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for label, points in lines(rows).items():
        axes.plot(*zip(*points, strict=True), marker="o", label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    sizes = sorted({row["bytes"] for row in rows})
    axes.set_xticks(sizes, [size.show(size_bytes) for size_bytes in sizes], rotation=45)
    axes.set_xlabel("size of the tensors")
    axes.set_ylabel("bus bandwidth, GB/s" if rows[0]["ranks"] > 1 else "bandwidth, GB/s")
    axes.set_title(title)
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    figure.savefig(path, format="png", dpi=120)
