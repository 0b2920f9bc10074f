"""Measures how long `examples/data_service.py` waits for data, prepared by itself and by workers, and prints a table.

    python benchmarks/data_service_wait.py [--rounds N] [--epochs N] [--json FILE]

Two arrangements of two cores, each with and without the service, in turn. "one core": the trainer has a core, as a
host has that has no more; the service's worker has the other, as another host would. "both cores": everything shares
both, so that the service adds nothing but its own cost. The figures are the example's own, of the last epoch.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "data_service.py"
LAST_EPOCH = re.compile(r"(\d+)ms/step .*data_wait_seconds: ([\d.]+) - data_wait_share: ([\d.]+)")
DEADLINE_S = 300


@dataclass(frozen=True)
class Result:
    """Of the last epochs of all rounds.

    Attributes:
        case: The arrangement.
        step_ms: Median of a step.
        wait_s: Median of the seconds that training waited in an epoch.
        share: Median of these by the whole epoch.
        speedup: Step without the service in the same arrangement, by this one; medians.
    """

    case: str
    step_ms: float
    wait_s: float
    share: float
    speedup: float


@contextmanager
def worker_on(core: int) -> Iterator[str]:
    """A dispatcher and a worker on one core, started by the commands; gives the address."""
    with ExitStack() as stack:

        def start(*command: str) -> str:
            line = ["taskset", "-c", str(core), sys.executable, "-m", "tfdist.command", "data-service", *command]
            process = stack.enter_context(subprocess.Popen(line, stderr=subprocess.PIPE, text=True))
            stack.callback(process.kill)
            assert process.stderr is not None
            for said in process.stderr:
                if found := re.search(r" at (\S+:\d+)", said):
                    return found[1]
            raise SystemExit(f"{' '.join(line)} ended before it said its address.")

        address = start("dispatcher", "--port", "0")
        start("worker", "--dispatcher", address)
        yield address


def train(folder: str, epochs: int, cores: str, *arguments: str) -> tuple[float, float, float]:
    """Milliseconds of a step, seconds waited and their share, in the last epoch."""
    command = ["taskset", "-c", cores, sys.executable, str(EXAMPLE), "--epochs", str(epochs), *arguments]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    found = LAST_EPOCH.findall(ran.stdout)
    if ran.returncode or not found:
        raise SystemExit(f"{' '.join(command)} ended with {ran.returncode}:\n{ran.stderr}")
    step, wait, share = map(float, found[-1])
    return step, wait, share


def measure(rounds: int, epochs: int) -> list[Result]:
    cases = ("one core, alone", "one core, a worker on the other", "both cores, alone", "both cores, 2 workers")
    seen: dict[str, list[tuple[float, float, float]]] = {case: [] for case in cases}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(rounds):
            print(f"round {turn + 1} of {rounds}", file=sys.stderr)
            seen[cases[0]].append(train(folder, epochs, "0"))
            with worker_on(1) as address:
                seen[cases[1]].append(train(folder, epochs, "0", "--data-service", address))
            seen[cases[2]].append(train(folder, epochs, "0,1"))
            seen[cases[3]].append(train(folder, epochs, "0,1", "--data-service", "2"))
    medians = {case: [statistics.median(column) for column in zip(*seen[case], strict=True)] for case in cases}
    alone = {case: medians[case.split(",")[0] + ", alone"][0] for case in cases}
    return [Result(case, *medians[case], alone[case] / medians[case][0]) for case in cases]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each")
    parser.add_argument("--epochs", type=int, default=5, help="epochs of a run")
    parser.add_argument("--json", type=Path, help="also writes the figures into this file")
    options = parser.parse_args(arguments)
    if (os.cpu_count() or 1) < 2:
        parser.error("this machine has one core; two are needed.")
    results = measure(options.rounds, options.epochs)
    print(f"{'arrangement':<34}{'step, ms':>10}{'waited, s':>11}{'share':>8}{'speed-up':>10}")
    for one in results:
        print(f"{one.case:<34}{one.step_ms:>10.0f}{one.wait_s:>11.2f}{one.share:>8.0%}{one.speedup:>10.2f}")
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in results], indent=1) + "\n")


if __name__ == "__main__":
    main()
