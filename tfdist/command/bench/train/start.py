"""Starts `tfdist bench train` several times, in turn with as many independent processes, to see how starts differ.

A whole start can be fast or slow, which no number of steps within one start shows. And the best that ranks can reach is
not the step time of a single process, since processes share the host's memory and caches, but that of independent
processes side by side. It does not import TensorFlow.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tfdist.command.bench.measure import machine, record, statistic, table
from tfdist.command.bench.measure.progress import Progress
from tfdist.command.bench.measure.request import Starts
from tfdist.errors import BuildError, ConfigError
from tfdist.system.process import end_child
from tfdist.system.rank import job_place

HEAD = "start,ranks ms,least ms,communication ms,independent ms,least ms,ranks / independent".split(",")
# A start that takes longer is stuck.
LIMIT_S = 3600.0
_GRACE_S = 10.0
_TAIL_LINES = 15
_TFDIST = (sys.executable, "-m", "tfdist.command")
# What a tfdist.yaml sets, such as autotuning, is not what is measured.
_TFDISTRUN = (sys.executable, "-m", "tfdist.launch", "--no-config")


def run(options: Starts) -> None:
    """Measures, prints the table and writes the requested files.

    Raises:
        ConfigError: If a launcher started it, because it runs the launcher itself.
        BuildError: If a start fails; includes the end of its output.
    """
    if job_place.is_taken():
        raise ConfigError(
            "--starts starts the ranks itself, but was run under a launcher. Run it without one: "
            f"tfdist bench train --starts {options.starts} --ranks {options.ranks} ..."
        )
    many = f"{options.starts} start{'s' * (options.starts != 1)}"
    print(f"tfdist bench train: {' '.join(options.words)}", flush=True)
    print(f"{many} of {options.ranks} ranks and of {options.ranks} independent processes, in turn", flush=True)
    progress = Progress("starts", options.starts)
    starts = []
    for number in range(1, options.starts + 1):
        starts.append(row(number, *_measure(options)))
        progress.done(number)
    summed = summary(starts)
    print(table.aligned(HEAD, [_cells(start) for start in starts]))
    print(*conclusion(summed, options.ranks), sep="\n")
    if options.csv is not None:
        record.write_csv(options.csv, [_flat(start) for start in starts])
    if options.json is not None:
        document = {"benchmark": "train", "machine": machine.describe(), "options": options}
        record.write_json(options.json, document | {"starts": starts, "summary": summed})


def row(number: int, together: dict[str, Any], independent: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One start.

    Args:
        number: The number of the start, from 1.
        together: The row that `tfdist bench train` wrote for all ranks.
        independent: The row of each independent process.
    """
    medians = [process["median_ms"] for process in independent]
    return {
        "start": number,
        "median_ms": together["median_ms"],
        "min_ms": together["min_ms"],
        "communication_ms": together["communication_ms"],
        "independent_median_ms": medians,
        "independent_min_ms": min(process["min_ms"] for process in independent),
        "ratio": together["median_ms"] / (sum(medians) / len(medians)),
    }


def summary(starts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians over starts, their spread, and the ratios of ranks to independent processes."""
    together = [start["median_ms"] for start in starts]
    independent = [median for start in starts for median in start["independent_median_ms"]]
    return {
        "ranks": _spread(together),
        "independent": _spread(independent),
        "ratio_of_medians": statistic.median(together) / statistic.median(independent),
        "ratio_of_minima": min(start["min_ms"] for start in starts)
        / min(start["independent_min_ms"] for start in starts),
        "slowest_start_to_slowest_independent": max(together) / max(independent),
    }


def conclusion(summed: dict[str, Any], ranks: int) -> list[str]:
    """The lines under the table."""
    lines = []
    for name, what in (("ranks", f"{ranks} ranks"), ("independent", f"{ranks} independent processes")):
        of = summed[name]
        lines.append(
            f"{what}: median {of['median_ms']:.1f} ms, {of['least_ms']:.1f} to {of['most_ms']:.1f} over starts "
            f"({100 * of['spread']:.1f} %)"
        )
    lines.append(
        f"ranks / independent: {summed['ratio_of_medians']:.3f} (medians), {summed['ratio_of_minima']:.3f} (least "
        f"times), {summed['slowest_start_to_slowest_independent']:.3f} (slowest starts)"
    )
    return lines


def shares(cores: Sequence[int], processes: int) -> list[frozenset[int] | None]:
    """Equal shares of cores, as the launcher binds ranks; None for each process if there are too few."""
    width = len(cores) // processes
    if width == 0:
        return [None] * processes
    return [frozenset(cores[width * index : width * (index + 1)]) for index in range(processes)]


def _spread(medians: Sequence[float]) -> dict[str, float]:
    middle, least, most = statistic.median(medians), min(medians), max(medians)
    return {"median_ms": middle, "least_ms": least, "most_ms": most, "spread": (most - least) / middle}


def _measure(options: Starts) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Starts the ranks, then the independent processes; returns the rows they write."""
    with tempfile.TemporaryDirectory(prefix="tfdist-bench-") as folder:
        files = [Path(folder) / f"{number}.json" for number in range(options.ranks + 1)]
        words = [(*_TFDIST, "bench", "train", *options.words, "--json", str(file)) for file in files]
        ranks = (*_TFDISTRUN, "-np", str(options.ranks), "-H", f"localhost:{options.ranks}", *words[0])
        run_side_by_side([ranks], [None])
        alone = [(*command, "--plain") for command in words[1:]]
        run_side_by_side(alone, shares(sorted(os.sched_getaffinity(0)), options.ranks))
        first, *others = (json.loads(file.read_text(encoding="utf-8"))["rows"][0] for file in files)
        return first, others


def run_side_by_side(
    commands: Sequence[Sequence[str]], cores: Sequence[frozenset[int] | None], limit_s: float = LIMIT_S
) -> None:
    """Runs the commands at the same time, each on its cores, and waits for them; on an error, kills all of them.

    Raises:
        BuildError: If one fails or takes longer than `limit_s`; includes the end of its output.
    """
    deadline = time.monotonic() + limit_s
    with contextlib.ExitStack() as stack:
        outputs = [stack.enter_context(tempfile.TemporaryFile()) for _ in commands]
        running = []
        for command, own, output in zip(commands, cores, outputs, strict=True):
            with _bound_to(own):
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
            stack.callback(end_child, process, _GRACE_S)  # the launcher terminates its ranks on the signal
            running.append(process)
        for process, output in zip(running, outputs, strict=True):
            try:
                status = process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise BuildError(f"a start took more than {limit_s:g} s. {_described(process, output)}") from None
            if status != 0:
                raise BuildError(f"a start exited with status {status}. {_described(process, output)}")


@contextlib.contextmanager
def _bound_to(cores: frozenset[int] | None) -> Iterator[None]:
    """Processes started inside run only on these cores."""
    before = os.sched_getaffinity(0)
    if cores is not None:
        os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _described(process: subprocess.Popen[bytes], output: Any) -> str:
    output.seek(0)
    lines = output.read().decode(errors="replace").splitlines()[-_TAIL_LINES:]
    command = " ".join(map(str, process.args))  # type: ignore[arg-type]  # arguments, as given
    return "\n".join([f"Its command: {command}", "The end of its output:", *lines])


def _cells(start: dict[str, Any]) -> list[str]:
    independent = " ".join(f"{median:.1f}" for median in start["independent_median_ms"])
    return [
        str(start["start"]),
        *(f"{start[name]:.1f}" for name in ("median_ms", "min_ms", "communication_ms")),
        independent,
        f"{start['independent_min_ms']:.1f}",
        f"{start['ratio']:.3f}",
    ]


def _flat(start: dict[str, Any]) -> dict[str, Any]:
    """One column per independent process."""
    others = {name: value for name, value in start.items() if name != "independent_median_ms"}
    return others | {f"independent_{index}_median_ms": m for index, m in enumerate(start["independent_median_ms"])}
