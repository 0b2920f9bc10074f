"""Compares what `tfdist bench scale` predicts for the ranks of this machine with what `tfdist bench train` measures.

Run it where tfdist is installed and nothing else runs:

    python benchmarks/scale/validate.py --model ResNet50 --image-size 96 --batch-size 8 --ranks 2,4

It records the step, times two sizes of allreduce on the ranks, describes this machine as a cluster of one host by
them, predicts, and then measures the step of all ranks. Nothing of that last measurement enters the prediction.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfdist.command.bench.measure import record, table
from tfdist.command.bench.scale import scale_step
from tfdist.command.bench.scale.scale_step import Step

BINDING = "--bind-to core"
SMALL, LARGE = 4 << 10, 64 << 20
SECONDS_A_RUN = 1800


def cluster(rows: Sequence[dict[str, Any]], ranks: int) -> dict[str, Any]:
    """The description of one host on which these two sizes of allreduce took their times.

    A ring of n ranks takes 2 (n - 1) latencies, and 2 (n - 1) / n of the bytes through each rank's memory.
    """
    small, large = sorted(rows, key=lambda row: row["bytes"])
    seconds = (large["median_us"] - small["median_us"]) / 1e6
    through = 2 * (ranks - 1) / ranks * (large["bytes"] - small["bytes"])
    if seconds <= 0:
        sys.exit(f"validate: {large['bytes']} bytes took no longer than {small['bytes']}: the machine is not quiet")
    return {
        "name": f"this machine, {ranks} ranks",
        "hosts": 1,
        "gpus_per_host": ranks,
        "intra_bandwidth_gb_s": through / seconds / 1e9,
        "inter_bandwidth_gb_s": 1,
        "intra_latency_us": small["median_us"] / (2 * (ranks - 1)),
        "inter_latency_us": 0,
        "software_latency_us": 0,
        "memory_bandwidth_gb_s": 1000,
        "sources": {
            "intra_bandwidth_gb_s": f"tfdist bench allreduce on {ranks} ranks, {SMALL} and {LARGE} bytes",
            "intra_latency_us": "the same",
            "inter_bandwidth_gb_s": "not used: there is one host",
            "memory_bandwidth_gb_s": "not used: nothing is compressed",
        },
    }


def shared(step: Step, ranks: int, cores: int) -> Step:
    """The step of each of so many ranks, which share the cores where there are fewer of them."""
    factor = max(1.0, ranks / cores)
    layers = tuple(replace(layer, backward_s=layer.backward_s * factor) for layer in step.layers)
    return replace(step, layers=layers, forward_s=step.forward_s * factor, update_s=step.update_s * factor)


def row(step: Step, alone: Step, predicted: dict[str, Any], measured: dict[str, Any]) -> list[str]:
    """Cells of one number of ranks."""
    together = measured["rows"][0]
    return [
        f"{step.model}, {step.image_size} px, batch {step.batch_size}",
        str(together["ranks"]),
        f"{alone.seconds * 1e3:.1f}",
        f"{predicted['step_ms']:.1f}",
        f"{together['median_ms']:.1f}",
        f"{predicted['step_ms'] / together['median_ms']:.2f}",
    ]


HEAD = "step|ranks|recorded alone, ms|predicted, ms|measured, ms|predicted / measured".split("|")


class Runner:
    """Runs the commands in a folder of their own, each with one thread a rank and ranks bound to cores."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self._arguments, self._folder = arguments, folder
        self._network = f"--image-size {arguments.image_size} --batch-size {arguments.batch_size}".split()

    def rows(self) -> list[list[str]]:
        path = self._folder / "step.json"
        words = ["--record", self._arguments.model, *self._network, "--steps", str(self._arguments.steps)]
        self._bench(1, "scale", *words, "--output", str(path))
        alone = scale_step.read(path)
        return [self._row(alone, ranks) for ranks in self._arguments.ranks]

    def _row(self, alone: Step, ranks: int) -> list[str]:
        step, described = self._folder / f"step{ranks}.json", self._folder / f"cluster{ranks}.json"
        scale_step.write(step, shared(alone, ranks, os.cpu_count() or 1))
        words = f"--sizes {SMALL},{LARGE} --compression none"
        record.write_json(described, cluster(self._result(ranks, "allreduce", *words.split())["rows"], ranks))
        words = f"--step {step} --cluster {described} --gpus {ranks} --no-overlap"
        predicted = self._result(1, "scale", *words.split())["rows"][0]
        words = f"--model {self._arguments.model} --steps {self._arguments.steps}"
        measured = self._result(ranks, "train", *words.split(), *self._network)
        return row(scale_step.read(step), alone, predicted, measured)

    def _result(self, ranks: int, *words: str) -> dict[str, Any]:
        path = self._folder / "result.json"
        self._bench(ranks, *words, "--json", str(path))
        document: dict[str, Any] = json.loads(path.read_text())
        return document

    def _bench(self, ranks: int, *words: str) -> None:
        launch = ["-np", str(ranks), *(["--binding-args", BINDING] if ranks <= (os.cpu_count() or 1) else [])]
        print("  " + shlex.join(["tfdistrun", *launch, "tfdist", "bench", *words]), flush=True)
        command = [sys.executable, "-m", "tfdist.launch", *launch, sys.executable, "-m", "tfdist.command", "bench"]
        done = subprocess.run(
            [*command, *words], cwd=self._folder, capture_output=True, text=True, timeout=SECONDS_A_RUN, check=False
        )
        if done.returncode != 0:
            tail = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
            sys.exit(f"validate: this ended with {done.returncode}: {shlex.join(words)}\n{tail}")


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", default="ResNet50")
    add("--image-size", type=int, default=96)
    add("--batch-size", type=int, default=8)
    add("--ranks", type=_ranks, default="2,4", help="numbers of ranks, 2 or more (default: %(default)s)")
    add("--steps", type=int, default=10, help="timed steps, of each round of the measurement (default: %(default)s)")
    return parser.parse_args(words)


def _ranks(text: str) -> list[int]:
    ranks = [int(word) for word in text.split(",")]
    if min(ranks) < 2:
        raise argparse.ArgumentTypeError(f"{text!r}: one rank exchanges nothing; give 2 or more")
    return ranks


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = Runner(parse(), Path(folder)).rows()
    print(table.markdown(HEAD, rows))


if __name__ == "__main__":
    main()
