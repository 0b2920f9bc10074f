"""Draws docs/performance.svg, the chart of the README, from the tables that compare.py wrote into docs/performance.md.

    python benchmarks/chart.py

It measures nothing and contains no figure: each bar is a cell of those tables, and the line below the chart is their
date and machine. It needs matplotlib (the extra `bench`).
"""

import argparse
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import document
import matplotlib
from matplotlib.figure import Figure

CHART = document.PERFORMANCE.with_suffix(".svg")
OURS, THEIRS, LIMIT = "#1a73e8", "#b0b7bf", "#d93025"
SYSTEMS = (("tfdist", OURS, "white"), ("Horovod", THEIRS, "black"))
# Text stays text, for readers and for the test; the same tables give the same file.
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "tfdist", "font.size": 10, "axes.spines.top": False}
STYLE |= {"axes.spines.right": False, "font.family": "sans-serif"}


@dataclass(frozen=True)
class Recorded:
    """What the chart shows of the document. Efficiencies in percent of one process alone, times in ms."""

    efficiencies: dict[str, dict[str, float]]  # model -> system -> percent
    reductions: dict[str, dict[str, float]]  # type on the wire -> system -> ms
    memcpy: float
    source: str


def tables(text: str) -> list[list[dict[str, str]]]:
    """The tables of a text in Markdown: their rows by the names of their columns, the first of equal names."""
    found = []
    for lines in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        head, _, *rows = ([cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines.splitlines())
        found.append([dict(reversed(list(zip(head, row, strict=True)))) for row in rows])
    return found


def recorded(text: str) -> Recorded:
    """Reads the section of compare.py.

    Raises:
        ValueError: If it has not been measured beside Horovod.
    """
    section = document.text_of(text, "compare")
    horovod = re.search(r"^- Horovod: (\S+)", section, re.MULTILINE)
    if horovod is None:
        raise ValueError("the section was measured without Horovod: run benchmarks/compare.py with --horovod-python")
    reductions, steps = tables(section)
    efficiencies: dict[str, dict[str, float]] = {}
    for row in steps:
        if row["wire"] == "none" and "XLA" not in row["training step"]:
            percent = 100 * float(row["alone / 2 ranks"])
            efficiencies.setdefault(row["training step"], {})[row["system"]] = percent
    largest = [row for row in reductions if row["float32 allreduce"] == reductions[-1]["float32 allreduce"]]
    times = {row["wire"]: {name: float(row[f"{name}, us"]) / 1000 for name, _, _ in SYSTEMS} for row in largest}
    processor, cores = (re.search(rf"^- {name}: (.+)$", section, re.MULTILINE) for name in ("processor", "cores"))
    day = re.search(r"^### Date\n\n(.+)$", section, re.MULTILINE)
    assert processor and cores and day
    source = f"2 ranks on {cores[1]} cores ({processor[1]}), Horovod {horovod[1]}, {day[1]}: docs/performance.md"
    return Recorded(efficiencies, times, float(largest[0]["memcpy, us"]) / 1000, source)


def draw(figures: Recorded, output: Path) -> None:
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9, 3.6), layout="constrained")
        training, reduction = figure.subplots(1, 2, width_ratios=(3, 2))
        names = {case: case.replace(", ", "\n", 1) for case in figures.efficiencies}
        _bars(training, {names[case]: by for case, by in figures.efficiencies.items()}, "{:.0f} %", padding=-15)
        _ceiling(training, 100, "ceiling: one process alone")
        training.legend(loc="upper left", ncols=3, frameon=False, columnspacing=1, handlelength=1.5)
        training.set(title="Speed of a rank in training", ylabel="% of one process alone", ylim=(0, 140))
        wires = {"none": "float32", "fp16": "fp16 on the wire"}
        _bars(reduction, {wires[wire]: by for wire, by in figures.reductions.items()}, "{:.0f} ms")
        limit = _ceiling(reduction, figures.memcpy, "limit: a memcpy of the same bytes")
        reduction.legend(handles=[limit], loc="upper left", frameon=False, handlelength=1.5)
        reduction.set(
            title="All-reduce of 100 MB", ylabel="ms, less is better", ylim=(0, 1.3 * reduction.get_ylim()[1])
        )
        figure.supxlabel(figures.source, fontsize=8, color="#5b6770")
        figure.savefig(output, metadata={"Date": None, "Title": "tfdist beside Horovod and beside the ceiling"})


def _bars(axes: Any, groups: dict[str, dict[str, float]], label: str, padding: float = 1) -> None:
    """For each group a bar of each system, with its value: above it, or in it if the padding is negative."""
    for offset, (system, color, ink) in zip((-0.2, 0.2), SYSTEMS, strict=True):
        values = [by[system] for by in groups.values()]
        places = [index + offset for index in range(len(groups))]
        bars = axes.bar(places, values, 0.38, color=color, label=system)
        axes.bar_label(bars, labels=map(label.format, values), padding=padding, color=ink if padding < 0 else "black")
    axes.set_xticks(range(len(groups)), list(groups))


def _ceiling(axes: Any, height: float, label: str) -> Any:
    return axes.axhline(height, color=LIMIT, linestyle="--", linewidth=1.5, label=label)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--document", type=Path, default=document.PERFORMANCE)
    parser.add_argument("--output", type=Path, default=CHART)
    arguments = parser.parse_args()
    draw(recorded(arguments.document.read_text()), arguments.output)
    print(f"written to {arguments.output}")


if __name__ == "__main__":
    main()
