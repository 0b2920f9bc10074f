"""Predicted efficiency over the number of GPUs as a picture, beside what others measured. It predicts nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]
Points = list[tuple[int, float]]


def label(row: Row) -> str:
    """What a line, and a table, is called."""
    kind = "" if row["compression"] == "none" else f", {row['compression']}"
    return f"{row['model']}, batch {row['batch_size']}{kind}, {row['schedule']}"


def lines(rows: Sequence[Row]) -> dict[str, Points]:
    """The points (GPUs, percent) of each line by its label, from few GPUs to many."""
    found: dict[str, Points] = {}
    for row in rows:
        found.setdefault(label(row), []).append((row["gpus"], 100 * row["efficiency"]))
    return {name: sorted(points) for name, points in found.items()}


def published(rows: Sequence[Row]) -> dict[str, Points]:
    """The measured points of each network."""
    found: dict[str, set[tuple[int, float]]] = {}
    for row in rows:
        if row["published_efficiency"] is not None:
            found.setdefault(row["model"], set()).add((row["gpus"], 100 * row["published_efficiency"]))
    return {name: sorted(points) for name, points in found.items()}


def write(path: Path, rows: Sequence[Row], title: str) -> None:
    """Draws into a file; needs no display. A network has one colour, its lines differ in their dashes."""
    import matplotlib.figure

    figure = matplotlib.figure.Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    models = list(dict.fromkeys(row["model"] for row in rows))
    model_of = {label(row): row["model"] for row in rows}
    drawn: dict[str, int] = {}
    for name, points in lines(rows).items():
        model = model_of[name]
        dashes = ("-", "--", ":", "-.")[drawn.setdefault(model, 0) % 4]
        drawn[model] += 1
        axes.plot(*zip(*points, strict=True), dashes, color=f"C{models.index(model)}", label=name)
    for model, points in published(rows).items():
        color = f"C{models.index(model)}"
        axes.plot(*zip(*points, strict=True), "o", color=color, label=f"{model}, published")
    axes.set_xscale("log", base=2)
    ticks = sorted({row["gpus"] for row in rows})
    axes.set_xticks(ticks, [str(gpus) for gpus in ticks])
    axes.set_ylim(0, 105)
    axes.set_xlabel("GPUs")
    axes.set_ylabel("efficiency, %")
    axes.set_title(title)
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    figure.savefig(path, format="png", dpi=120)
