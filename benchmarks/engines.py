"""Times the steps of one training under tfdistrun's launcher, on Spark's executors and on Ray's nodes, in turn.

    python benchmarks/engines.py [--starts N] [--steps N] [--only ENGINE] [--json FILE]

Each start is a program of its own: it brings up what is needed (for Spark local-cluster[2,1,1024], for Ray two nodes on
this machine), starts 2 ranks without MPI, and trains a dense network of 1.6 million weights with one thread a rank.
Printed are the median steps of rank 0, the time from the call until the ranks have begun, and the processor time that
all other processes of the engine took while it trained. Needs the extras `spark` and `ray`, and Java.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tfdist.command.bench.measure import table

DEADLINE_S = 600
RANKS = 2
WARM_UP = 20


def train(steps: int) -> dict[str, Any]:
    """What each rank runs: when it began, the seconds of its steps, and what others took meanwhile."""
    import keras
    import numpy as np
    import tensorflow as tf

    import tfdist

    began = time.time()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tfdist.init()
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(512, activation="relu") for _ in range(6)]
    model = keras.Sequential([keras.Input((512,)), *layers, keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1e-3), "mse")
    rows = np.random.default_rng(tfdist.rank()).normal(size=(64, 512)).astype("float32")
    data = tf.data.Dataset.from_tensors((rows, rows[:, :1])).repeat()
    ends: list[float] = []

    class Clock(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            ends.append(time.perf_counter())
            if batch + 1 == WARM_UP:
                self.before = processor_times()

        def on_train_end(self, logs: object = None) -> None:
            self.after = processor_times()

    clock = Clock()
    callbacks = [tfdist.callbacks.DataParallel(scale_learning_rate=False), clock]
    model.fit(tfdist.shard(data), steps_per_epoch=steps + WARM_UP, epochs=1, verbose=0, callbacks=callbacks)
    times = np.diff(ends[WARM_UP - 1 :])
    taken: dict[str, float] = {}
    for process, (name, seconds) in clock.after.items():
        taken[name] = taken.get(name, 0.0) + seconds - clock.before.get(process, (name, 0.0))[1]
    return {"began": began, "steps": times.tolist(), "taken": taken, "wall": float(times.sum())}


def processor_times() -> dict[int, tuple[str, float]]:
    """Of each process its kind, and the seconds that it has had."""
    kinds = {
        "function/worker.py": "ranks",
        "java": "Spark (Java)",
        "pyspark": "Spark (Python)",
        "raylet": "Ray",
        "gcs_server": "Ray",
        "ray::": "Ray",
        "ray/": "Ray",
        "tfdist/launch": "tfdist",
    }
    found = {}
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        kind = next((kind for part, kind in kinds.items() if part in words), "others")
        found[int(entry)] = (kind, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))
    return found


def by_launcher(steps: int) -> tuple[float, list[Any]]:
    import tfdist

    called = time.time()
    return called, tfdist.run(train, (steps,), num_proc=RANKS, use_gloo=True)


def by_spark(steps: int) -> tuple[float, list[Any]]:
    from pyspark.sql import SparkSession

    import tfdist.spark

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local-cluster[{RANKS},1,1024]").config("spark.ui.enabled", "false")
    session = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    session.sparkContext.parallelize(range(RANKS), RANKS).map(lambda number: number).collect()  # executors are there
    called = time.time()
    results = tfdist.spark.run(train, (steps,), num_proc=RANKS)
    session.stop()
    return called, results


def by_ray(steps: int) -> tuple[float, list[Any]]:
    import ray
    from ray.cluster_utils import Cluster

    import tfdist.ray

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    called = time.time()
    executor = tfdist.ray.RayExecutor(num_workers=RANKS)
    executor.start()
    results = executor.run(train, (steps,))
    executor.shutdown()
    ray.shutdown()
    cluster.shutdown()
    return called, results


ENGINES = {"tfdistrun": by_launcher, "Spark": by_spark, "Ray": by_ray}


def start(engine: str, steps: int) -> dict[str, Any]:
    """What one program of its own finds. Raises RuntimeError if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "found.json")
        words = [sys.executable, str(Path(__file__).resolve()), "--child", engine, "--steps", str(steps)]
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
        done = subprocess.run(
            [*words, "--json", str(path)],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
            env=environment,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{engine}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        found: dict[str, Any] = json.loads(path.read_text())
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=5, metavar="N", help="of each (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=500, metavar="N", help="of each start (default: %(default)s)")
    parser.add_argument("--only", choices=ENGINES, action="append", help="this one; may be given again (default: all)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there as well")
    parser.add_argument("--child", choices=ENGINES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        called, results = ENGINES[options.child](options.steps)
        first = results[0]
        found = first | {"start": max(each["began"] for each in results) - called}
        options.json.write_text(json.dumps(found))
        return
    engines = options.only or list(ENGINES)
    found: dict[str, list[dict[str, Any]]] = {engine: [] for engine in engines}
    for number in range(options.starts):
        for engine in engines:
            found[engine].append(start(engine, options.steps))
            step = statistics.median(found[engine][-1]["steps"])
            print(f"start {number + 1} of {options.starts}, {engine}: {step * 1e3:.2f} ms a step", flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    print("", table.markdown(HEAD.split("|"), rows(found)), sep="\n")


HEAD = "ranks started by|median step, ms|least of the medians, ms|of the first|start, s|others take, % of a core"


def rows(found: dict[str, list[dict[str, Any]]]) -> list[list[str]]:
    """The cells of the table: medians of the starts."""
    cells, first = [], None
    for engine, starts in found.items():
        medians = [statistics.median(each["steps"]) * 1e3 for each in starts]
        median = statistics.median(medians)
        first = median if first is None else first
        shares: dict[str, list[float]] = {}
        for each in starts:
            for kind, seconds in each["taken"].items():
                if kind != "ranks":
                    shares.setdefault(kind, []).append(100 * seconds / each["wall"])
        others = ", ".join(f"{kind} {statistics.median(values):.1f}" for kind, values in sorted(shares.items()))
        begun = statistics.median(each["start"] for each in starts)
        cells.append([engine, f"{median:.2f}", f"{min(medians):.2f}", f"{median / first:.3f}", f"{begun:.2f}", others])
    return cells


if __name__ == "__main__":
    main()
