"""Plots the summary of timelines with matplotlib: one bar per rank."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from tfdist.command.timeline.summary import PHASES, Share
from tfdist.errors import ConfigError

PARTS = (*PHASES, "other", "outside")


def check(path: Path) -> None:
    """Raises ConfigError if plotting would fail; called before anything is read."""
    if path.suffix != ".png":
        raise ConfigError(f"--png {path}: only PNG is supported; use a name that ends in .png")
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--png needs matplotlib, which is not installed; install it with: pip install matplotlib")


def write(path: Path, shares: Sequence[Share]) -> None:
    """Plots to a file; needs no display."""
    import matplotlib.figure

    figure = matplotlib.figure.Figure(figsize=(8, 1.5 + 0.5 * len(shares)), layout="constrained")
    axes = figure.subplots()
    names = [f"rank {share.rank}" for share in shares]
    left = [0.0] * len(shares)
    for part in PARTS:
        lengths = [getattr(share, part) for share in shares]
        axes.barh(range(len(shares)), lengths, left=left, label=part)
        left = [begin + length for begin, length in zip(left, lengths, strict=True)]
    axes.set_yticks(range(len(shares)), names)
    axes.invert_yaxis()
    axes.set_xlabel("seconds")
    axes.set_title("where the time went")
    axes.legend(ncols=len(PARTS), loc="upper center", bbox_to_anchor=(0.5, -0.25), fontsize="small")
    figure.savefig(path, format="png", dpi=120)
