"""Measures what tfdist costs beside its collectives, and writes docs/performance.md.

Import, init, waiting for a late rank, memory, and what more ranks than cores cost.

    python benchmarks/overhead.py

Each figure comes from processes of its own, started again and again; the median and the least are told.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import document

from tfdist.command.bench.measure import machine, table

DEADLINE_S = 600
CORES = 2
NOTHING = "–"

# What each process runs; it prints a line of JSON on rank 0. `meet` is a folder in which ranks wait for each other.
IMPORT = """
import time, tensorflow
start = time.perf_counter()
import tfdist
imported = time.perf_counter() - start
tfdist.callbacks.DataParallel, tfdist.shard, tfdist.DistributedOptimizer, tfdist.is_initialized()
print(json.dumps({"import": imported, "use": time.perf_counter() - start}))
"""
INIT = """
import pathlib, time, tensorflow, tfdist
tfdist.is_initialized()
here = pathlib.Path(os.environ["MEET"])
(here / os.environ["OMPI_COMM_WORLD_RANK"]).touch()
while len(list(here.iterdir())) < 2:  # so that no rank waits for the other's imports inside of init
    time.sleep(0.001)
start = time.perf_counter()
tfdist.init()
seconds = time.perf_counter() - start
slowest = max(tfdist.allgather_object(seconds))
if tfdist.rank() == 0:
    print(json.dumps({"init": slowest}))
"""
WAIT = """
import threading, time, tfdist
tfdist.init()
tfdist.barrier()
if tfdist.rank() == 1:
    time.sleep(3)
    tfdist.barrier()
else:
    begin = []
    timer = threading.Timer(0.05, lambda: begin.extend((time.perf_counter(), time.process_time())))
    timer.start()
    tfdist.barrier()
    waited, worked = time.perf_counter() - begin[0], time.process_time() - begin[1]
    print(json.dumps({"wait": worked / waited}))
"""
TRAIN = """
import keras, numpy as np, tensorflow as tf
network, distributed = os.environ["NETWORK"], os.environ["DISTRIBUTED"] == "1"
tf.config.threading.set_intra_op_parallelism_threads(1)
callbacks = []
if distributed:
    import tfdist
    callbacks = [tfdist.callbacks.DataParallel(scale_learning_rate=False)]
    tfdist.init()
model = getattr(keras.applications, network)(weights=None, input_shape=(96, 96, 3), classes=1000)
model.compile(keras.optimizers.SGD(1e-4, momentum=0.9), loss="sparse_categorical_crossentropy")
data = tf.data.Dataset.from_tensors((np.zeros((8, 96, 96, 3), "float32"), np.zeros(8, "int64"))).repeat()
model.fit(data, steps_per_epoch=6, verbose=0, callbacks=callbacks)
sizes = dict(line.split()[:2] for line in open("/proc/self/status") if line.startswith("Vm"))
if os.environ["OMPI_COMM_WORLD_RANK"] == "0":
    print(json.dumps({"now": int(sizes["VmRSS:"]) / 1024, "most": int(sizes["VmHWM:"]) / 1024}))
"""


@dataclass(frozen=True)
class Cost:
    """What was measured; `limit` and `samples` have the unit `unit`.

    Of a difference or a ratio of two measurements the least says nothing but how lucky one was: `paired`.
    """

    what: str
    unit: str
    limit: float
    samples: Sequence[float]
    paired: bool = False

    def cells(self) -> list[str]:
        median, least, limit = (
            f"{value:.3g} {self.unit}".strip()
            for value in (statistics.median(self.samples), min(self.samples), self.limit)
        )
        return [self.what, median, NOTHING if self.paired else least, limit]


def process(program: str, ranks: int = 0, **variables: str) -> dict[str, float]:
    """The line of JSON that a program prints, started on so many ranks; 0 is without a launcher."""
    with tempfile.TemporaryDirectory() as folder:  # away from a source tree, so that the installed package is used
        meet = Path(folder) / "meet"
        meet.mkdir()
        script = Path(folder) / "program.py"
        script.write_text("import json, os\n" + program)
        launch = ["-m", "tfdist.launch", "-np", str(ranks), sys.executable] if ranks else []
        environment = dict(os.environ) | variables | {"MEET": str(meet), "TF_CPP_MIN_LOG_LEVEL": "3"}
        words = [sys.executable, *launch, str(script)]
        done = subprocess.run(
            words, env=environment, cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
    lines = [line[line.index("{") :] for line in done.stdout.splitlines() if "{" in line]
    if done.returncode != 0 or not lines:
        sys.exit(f"overhead: a process ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return json.loads(lines[-1])  # type: ignore[no-any-return]


def measure(repeats: int) -> list[Cost]:
    imports = [process(IMPORT) for _ in range(repeats)]
    inits = [process(INIT, ranks=2) for _ in range(repeats)]
    waits = [process(WAIT, ranks=2) for _ in range(min(repeats, 3))]
    costs = [
        Cost("`import tfdist`, after TensorFlow", "s", 0.15, [sample["import"] for sample in imports]),
        Cost("the same, and the first use of its parts", "s", 0.15, [sample["use"] for sample in imports]),
        Cost("`init`, 2 ranks", "s", 0.3, [sample["init"] for sample in inits]),
        Cost("a rank that waits for a late one, after 50 ms", "% of a core", 5, [100 * s["wait"] for s in waits]),
    ]
    for network in ("MobileNetV2", "ResNet50"):
        more: dict[str, list[float]] = {"now": [], "most": []}
        for _ in range(min(repeats, 3)):
            # Two processes of Keras alone from the same launcher, so that threads and binding are the same.
            plain = process(TRAIN, ranks=2, NETWORK=network, DISTRIBUTED="0")
            distributed = process(TRAIN, ranks=2, NETWORK=network, DISTRIBUTED="1")
            for name, values in more.items():
                values.append(distributed[name] - plain[name])
        costs.append(Cost(f"resident memory of a rank beyond Keras alone, {network}", "MiB", 80, more["now"], True))
        costs.append(Cost(f"the same, at its highest, {network}", "MiB", 80, more["most"], True))
    costs.append(crowding(min(repeats, 3)))
    return costs


def crowding(repeats: int) -> Cost:
    """The step of 4 ranks, by twice that of 2 ranks; on as many cores as CORES it is 1 if sharing costs nothing."""
    ratios = []
    for _ in range(repeats):
        two, four = (step_ms(ranks) for ranks in (2, 4))
        ratios.append(four / (2 * two))
    return Cost("step of 4 ranks / twice that of 2 ranks, ResNet50, on 2 cores", "", 1.25, ratios, True)


def step_ms(ranks: int) -> float:
    """The median step of ResNet50 on so many ranks of one thread, which share CORES cores."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        launch = ["-m", "tfdist.launch", "-np", str(ranks), "--binding-args", "--bind-to none"]
        bench = "bench train --model ResNet50 --image-size 96 --batch-size 8 --steps 5 --rounds 2 --threads 1 --json"
        words = [sys.executable, *launch, sys.executable, "-m", "tfdist.command", *bench.split(), str(result)]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        if done.returncode != 0:
            sys.exit(f"overhead: a benchmark ended with {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}")
        return float(json.loads(result.read_text())["rows"][0]["median_ms"])


def keep_to_cores() -> None:
    """Leaves this process and those that it starts CORES cores, which the figures are of."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < CORES:
        sys.exit(f"overhead: needs {CORES} cores; there is {len(cores)}")
    os.sched_setaffinity(0, cores[:CORES])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7, help="processes of each kind (default: %(default)s)")
    parser.add_argument("--document", type=Path, default=document.PERFORMANCE)
    arguments = parser.parse_args()
    keep_to_cores()
    document.replaced(arguments.document.read_text(), "overhead", "")  # before the work, not after it
    print("overhead: about ten minutes ...", flush=True)
    costs = measure(arguments.repeats)
    facts = document.lines_of(machine.describe())
    rows = table.markdown(["what", "median", "least", "limit"], [cost.cells() for cost in costs])
    command = ["```", f"python benchmarks/overhead.py --repeats {arguments.repeats}", "```"]
    text = "\n".join([*facts, f"- date: {document.today()}", "", *command, "", rows])
    document.write(arguments.document, "overhead", text)
    print(text, f"\nwritten to {arguments.document}", sep="\n")


if __name__ == "__main__":
    main()
