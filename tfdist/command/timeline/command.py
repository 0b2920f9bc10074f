"""The `tfdist timeline` command: options, files and output. `merge` and `summary` do the work."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from tfdist.command.timeline import merge, plot, summary, trace_file
from tfdist.errors import ConfigError
from tfdist.system.atomic_file import write_atomically
from tfdist.system.terminal.command_line import Parser

_DESCRIPTION = """\
Reads the timelines written by the ranks of a job, including killed ranks.

examples:
  tfdistrun -np 2 --timeline-filename run.json python train.py      writes run.0.json and run.1.json
  tfdist timeline summary run.*.json                                where the time went, and who was the straggler
  tfdist timeline merge run.*.json -o all.json                      one file, for chrome://tracing or ui.perfetto.dev
"""


def main(words: Sequence[str]) -> int:
    """Returns the exit status. Raises ConfigError for invalid options and files."""
    known = parser().parse_args(words)
    files: list[Path] = known.files
    return _merge(files, known.output) if known.action == "merge" else _summarize(files, known.json, known.png)


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = Parser(prog="tfdist timeline", description=_DESCRIPTION)
    actions = made.add_subparsers(dest="action", required=True, metavar="merge|summary")
    merging = actions.add_parser("merge", help="merge all into one file, by the clock of rank 0")
    merging.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="the file to write")
    telling = actions.add_parser("summary", help="show where the time went, rank by rank")
    telling.add_argument("--json", action="store_true", help="print JSON")
    telling.add_argument("--png", type=Path, metavar="FILE", help="also plot it; needs matplotlib")
    for action in (merging, telling):
        action.add_argument("files", nargs="+", type=Path, metavar="FILES", help="the timelines, one per rank")
    return made


def _merge(files: Sequence[Path], output: Path) -> int:
    if output.absolute() in {file.absolute() for file in files}:
        raise ConfigError(f"-o {output} is one of the files to merge; choose another name.")
    traces = trace_file.read_all(files)
    text = json.dumps(merge.merge(traces))
    try:
        write_atomically(output, lambda path: path.write_text(text, encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"-o {output} cannot be written: {error}") from None
    print(f"{output}: {len(traces)} ranks, {sum(len(trace.events) for trace in traces)} events")
    return 0


def _summarize(files: Sequence[Path], as_json: bool, png: Path | None) -> int:
    if png is not None:
        plot.check(png)
    shares = summary.summarize(trace_file.read_all(files))
    print(json.dumps(summary.document(shares), indent=2) if as_json else summary.table(shares))
    if png is not None:
        try:
            write_atomically(png, lambda path: plot.write(path, shares))
        except OSError as error:
            raise ConfigError(f"--png {png} cannot be written: {error}") from None
    return 0
