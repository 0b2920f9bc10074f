"""Runs tfdist and Horovod in turn on this machine; after each case writes the tables into docs/performance.md.

Run it where tfdist is installed and nothing else runs:

    python benchmarks/compare.py --horovod-python PATH-OF-ITS-ENVIRONMENT/bin/python

Without an environment with Horovod (benchmarks/README.md says how to make one) it measures tfdist alone and says so.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import document

from tfdist.command.bench.measure import size, table

HERE = Path(__file__).resolve().parent
VARIABLE = "TFDIST_BENCH_HOROVOD_PYTHON"
ALLREDUCES = "4KB/1,1MB/160,100MB/160"
TRAININGS = "ResNet50/96/8,VGG16/64/8,MobileNetV2/96/8,ResNet50/96/8/xla"
BINDING = "--bind-to core"
ROUNDS_A_RUN = 6
SECONDS_A_RUN = 1800
NOTHING = "–"
SKIPPED = (
    f"Horovod was not measured: neither --horovod-python nor {VARIABLE} names a Python with Horovod. "
    "benchmarks/README.md says how to make such an environment."
)


@dataclass(frozen=True)
class Reduction:
    """A collective of `size_bytes` in `tensors` float32 tensors; written 100MB/160."""

    size_bytes: int
    tensors: int

    @classmethod
    def parse(cls, text: str) -> "Reduction":
        amount, tensors = text.split("/")
        return cls(size.parse(amount), int(tensors))

    def __str__(self) -> str:
        return f"{size.show(self.size_bytes)}, {self.tensors} tensor{'s' * (self.tensors != 1)}"


@dataclass(frozen=True)
class Training:
    """A network, its image size in pixels and its batch; written ResNet50/96/8, or ResNet50/96/8/xla if compiled.

    Only tfdist trains what XLA compiles.
    """

    model: str
    image_size: int
    batch_size: int
    xla: bool = False

    @classmethod
    def parse(cls, text: str) -> "Training":
        model, *numbers = text.split("/")
        xla = numbers[-1] == "xla"
        image_size, batch_size = map(int, numbers[: 2 if xla else None])
        return cls(model, image_size, batch_size, xla)

    def __str__(self) -> str:
        return f"{self.model}, {self.image_size} px, batch {self.batch_size}{', XLA' * self.xla}"


@dataclass
class Figure:
    """Medians and least times of one system's runs of one case; quoted are the median and the least of them."""

    medians: list[float] = field(default_factory=list)
    minima: list[float] = field(default_factory=list)

    def add(self, median: float, least: float) -> None:
        self.medians.append(median)
        self.minima.append(least)

    @property
    def median(self) -> float:
        return statistics.median(self.medians)

    @property
    def least(self) -> float:
        return min(self.minima)


@dataclass
class Results:
    """Figures by (system, case, compression, what); `what` is "ranks", "alone" or "memcpy". Times in us or ms."""

    figures: dict[tuple[str, Any, str, str], Figure] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    horovod: str | None = None
    commands: list[str] = field(default_factory=list)

    def has(self, case: Any, compression: str) -> bool:
        """Whether this case has been measured."""
        return ("tfdist", case, compression, "ranks") in self.figures

    def figure(self, system: str, case: Any, compression: str, what: str = "ranks") -> Figure:
        return self.figures.setdefault((system, case, compression, what), Figure())

    def add_reduction(self, case: Reduction, result: dict[str, Any]) -> None:
        """Takes what `tfdist bench allreduce --json` wrote."""
        self.facts = result["machine"]
        for row in result["rows"]:
            self.figure("tfdist", case, row["compression"]).add(row["median_us"], row["min_us"])
            self.figure("tfdist", case, row["compression"], "memcpy").add(row["memcpy_us"], row["memcpy_us"])

    def add_training(self, case: Training, result: dict[str, Any]) -> None:
        """Takes what `tfdist bench train --compare-single --json` wrote."""
        self.facts = result["machine"]
        for row, what in zip(result["rows"], ("ranks", "alone"), strict=True):
            self.figure("tfdist", case, result["options"]["compression"], what).add(row["median_ms"], row["min_ms"])

    def add_horovod(self, case: Reduction | Training, text: str) -> None:
        """Takes the output of the scripts in horovod/: lines of JSON among whatever else was printed."""
        lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        if not lines:
            raise ValueError(f"Horovod printed no result for {case}; it printed: {text.strip() or 'nothing'}")
        for line in lines:
            self.horovod = f"{line['horovod']} on TensorFlow {line['tensorflow']}"
            what = "alone" if line.get("ranks") == 1 else "ranks"
            unit = "us" if isinstance(case, Reduction) else "ms"
            self.figure("Horovod", case, line["compression"], what).add(line[f"median_{unit}"], line[f"min_{unit}"])


def reduction_table(results: Results, cases: Sequence[Reduction], compressions: Sequence[str]) -> str:
    head = (
        "float32 allreduce|wire|runs|tfdist, us|least|Horovod, us|least|tfdist / Horovod|of least|memcpy, us|"
        "tfdist / memcpy"
    )
    rows = []
    for case in cases:
        for wire in filter(partial(results.has, case), compressions):
            ours, theirs = results.figure("tfdist", case, wire), results.figures.get(("Horovod", case, wire, "ranks"))
            copy = results.figure("tfdist", case, wire, "memcpy")
            cells = [str(case), wire, str(len(ours.medians)), f"{ours.median:.1f}", f"{ours.least:.1f}", *_pair(theirs)]
            cells += [_ratio(ours.median, theirs and theirs.median), _ratio(ours.least, theirs and theirs.least)]
            rows.append([*cells, f"{copy.median:.1f}", _ratio(ours.median, copy.median)])
    return table.markdown(head.split("|"), rows)


def training_table(results: Results, cases: Sequence[Training], compressions: Sequence[str], ranks: int) -> str:
    head = f"training step|wire|runs|system|alone, ms|least|{ranks} ranks, ms|least|alone / {ranks} ranks|of least"
    rows = []
    for case in cases:
        for wire in filter(partial(results.has, case), compressions):
            runs = str(len(results.figure("tfdist", case, wire).medians))
            for system in ("tfdist",) if case.xla else ("tfdist", "Horovod"):
                alone = results.figures.get((system, case, wire, "alone"))
                together = results.figures.get((system, case, wire, "ranks"))
                cells = [str(case), wire, runs, system, *_pair(alone), *_pair(together)]
                cells += [_ratio(alone and alone.median, together and together.median)]
                rows.append([*cells, _ratio(alone and alone.least, together and together.least)])
    return table.markdown(head.split("|"), rows)


def _pair(figure: Figure | None) -> list[str]:
    return [NOTHING, NOTHING] if figure is None else [f"{figure.median:.1f}", f"{figure.least:.1f}"]


def _ratio(above: float | None, below: float | None) -> str:
    return NOTHING if above is None or below is None else f"{above / below:.2f}"


def section(results: Results, tables: Iterable[str], day: str, how: str) -> str:
    """The text between the markers."""
    return "\n".join(
        [
            *("### Machine", "", *document.lines_of(results.facts)),
            f"- Horovod: {results.horovod}" if results.horovod else f"- {SKIPPED}",
            *("", "### Commands", "", f"{how}", "", "```", *results.commands, "```"),
            *("", "### Date", "", day, "", "### Tables", ""),
            "Each figure is the median of the medians of the runs; `least` is the least time of all of them.",
            *(line for text in tables for line in ("", text)),
        ]
    )


class Runner:
    """Runs both systems, each with one thread a rank and ranks bound to cores, and tells every command.

    `save` is called after each case, with the results so far.
    """

    def __init__(self, arguments: argparse.Namespace, save: Callable[[Results], None]) -> None:
        self._arguments = arguments
        self._save = save
        self._python = arguments.horovod_python
        self.results = Results()

    def run(self) -> None:
        arguments = self._arguments
        for number in range(arguments.rounds):
            for case in arguments.allreduce:
                print(f"round {number + 1} of {arguments.rounds}: {case}", flush=True)
                self._reduce(case)
                self._save(self.results)
            for training in arguments.train:
                for compression in arguments.compressions:
                    print(f"round {number + 1} of {arguments.rounds}: {training}, {compression}", flush=True)
                    self._train(training, compression)
                    self._save(self.results)

    def _reduce(self, case: Reduction) -> None:
        arguments, wires = self._arguments, ",".join(self._arguments.compressions)
        words = (
            f"--sizes {case.size_bytes} --tensors {case.tensors} --compression {wires} --seconds {arguments.seconds:g}"
        )
        self.results.add_reduction(case, self._tfdist("allreduce", *words.split()))
        if self._python:
            words = f"{case.size_bytes} {case.tensors} {wires} {arguments.seconds:g}"
            self.results.add_horovod(case, self._horovod("allreduce.py", arguments.ranks, *words.split()))

    def _train(self, case: Training, compression: str) -> None:
        arguments = self._arguments
        words = f"--model {case.model} --image-size {case.image_size} --batch-size {case.batch_size}"
        words += f" --compression {compression} --compare-single --steps {arguments.steps} --rounds {ROUNDS_A_RUN}"
        words += " --jit-compile" * case.xla
        self.results.add_training(case, self._tfdist("train", *words.split()))
        if self._python and not case.xla:
            steps = arguments.steps * ROUNDS_A_RUN
            words = f"{case.model} {case.image_size} {case.batch_size} {compression} {steps}"
            for ranks in (1, arguments.ranks):
                self.results.add_horovod(case, self._horovod("train.py", ranks, *words.split()))

    def _tfdist(self, benchmark: str, *words: str) -> dict[str, Any]:
        launch = ["-np", str(self._arguments.ranks), "--binding-args", BINDING]
        self._tell(["tfdistrun", *launch, "tfdist", "bench", benchmark, *words])
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "result.json"
            bench = [sys.executable, "-m", "tfdist.command", "bench", benchmark, *words, "--json", str(path)]
            _output([sys.executable, "-m", "tfdist.launch", *launch, *bench], dict(os.environ))
            return json.loads(path.read_text())

    def _horovod(self, script: str, ranks: int, *words: str) -> str:
        mpirun = Path(self._python).parent / "mpirun"
        launch = ["-np", str(ranks), *BINDING.split()]
        self._tell(["mpirun", *launch, "python", f"benchmarks/horovod/{script}", *words])
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment["OMP_NUM_THREADS"] = "1"
        if os.geteuid() == 0:
            environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return _output([str(mpirun), *launch, self._python, str(HERE / "horovod" / script), *words], environment)

    def _tell(self, words: Sequence[str]) -> None:
        command = shlex.join(words)
        print(f"  {command}", flush=True)
        if command not in self.results.commands:
            self.results.commands.append(command)


def _output(command: Sequence[str], environment: dict[str, str]) -> str:
    """Standard output of a command that must succeed."""
    # A folder without a source tree, so that what is imported is what is installed.
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True, timeout=SECONDS_A_RUN, check=False
        )
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        sys.exit(f"compare: this ended with {done.returncode}:\n  {shlex.join(command)}\n{tail}")
    return done.stdout


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--horovod-python", default=os.environ.get(VARIABLE), help=f"python with Horovod (default: {VARIABLE})")
    add(
        "--allreduce", type=_list(Reduction), default=ALLREDUCES, help="SIZE/TENSORS,... or none (default: %(default)s)"
    )
    add(
        "--train", type=_list(Training), default=TRAININGS, help="MODEL/PIXELS/BATCH,... or none (default: %(default)s)"
    )
    add("--compressions", type=lambda text: text.split(","), default="none,fp16", help="default: %(default)s")
    add("--ranks", type=int, default=2)
    add("--rounds", type=int, default=3, help="times that both systems take turns (default: %(default)s)")
    add("--seconds", type=float, default=5.0, help="for each allreduce and run (default: %(default)s)")
    add("--steps", type=int, default=5, help=f"timed steps in each of {ROUNDS_A_RUN} rounds (default: %(default)s)")
    add("--document", type=Path, default=document.PERFORMANCE)
    return parser.parse_args(words)


def _list(kind: type[Reduction] | type[Training]) -> Any:
    def parse_all(text: str) -> list[Any]:
        return [] if text == "none" else [kind.parse(word) for word in text.split(",")]

    return parse_all


def check(arguments: argparse.Namespace) -> None:
    """Ends the program now, and not after the first case, for what could not be done then."""
    try:
        document.replaced(arguments.document.read_text(), "compare", "")
    except (OSError, ValueError) as error:
        sys.exit(f"compare: --document {arguments.document}: {error}")
    if arguments.horovod_python:
        for path in (Path(arguments.horovod_python), Path(arguments.horovod_python).parent / "mpirun"):
            if not os.access(path, os.X_OK):
                sys.exit(f"compare: {path} is not an executable file; benchmarks/README.md says how it gets there")


def tables(results: Results, arguments: argparse.Namespace) -> list[str]:
    """The tables of what was asked for, with the cases that have been measured."""
    texts = []
    if arguments.allreduce:
        texts.append(reduction_table(results, arguments.allreduce, arguments.compressions))
    if arguments.train:
        texts.append(training_table(results, arguments.train, arguments.compressions, arguments.ranks))
    return texts


def save(arguments: argparse.Namespace, results: Results) -> None:
    """Writes the results so far into the document, so that they are not lost if the rest is stopped."""
    systems = "tfdist and Horovod in turn" if results.horovod else "tfdist alone"
    how = f"{systems}, {arguments.ranks} ranks, each with one thread, bound to cores; `runs` says how many turns."
    text = section(results, tables(results, arguments), document.today(), how)
    document.write(arguments.document, "compare", text)


def main() -> None:
    arguments = parse()
    check(arguments)
    if not arguments.horovod_python:
        print(f"compare: {SKIPPED}", flush=True)
    runner = Runner(arguments, partial(save, arguments))
    runner.run()
    print(f"written to {arguments.document}:", *tables(runner.results, arguments), sep="\n\n", flush=True)
    print("the chart of the README has the old figures until you run: python benchmarks/chart.py", flush=True)


if __name__ == "__main__":
    main()
