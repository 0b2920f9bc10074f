"""Measures what watching costs: steps of the same training with and without timeline and metrics, in turn.

    python benchmarks/observe.py [--ranks N] [--rounds N] [--steps N] [--json FILE]

One job of N ranks (2) trains ResNet50 on images of 96 x 96 pixels, 8 a rank, one thread each. In each round it takes
some steps without and as many with all of it: the timeline, `tfdist.callbacks.Metrics`, and a program that reads rank
0's metrics page every second. The order changes from round to round. A figure is that of the mean step of a round on
the slowest rank.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tfdist.command.bench.measure import table

DEADLINE_S = 1800
JOB = """
import json, os, threading, time, urllib.request, keras, numpy as np, tensorflow as tf, tfdist
rounds, steps, port = int(os.environ["ROUNDS"]), int(os.environ["STEPS"]), os.environ["TFDIST_METRICS_PORT"]
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
tfdist.init()
model = keras.applications.ResNet50(weights=None, input_shape=(96, 96, 3), classes=100)
model.compile(keras.optimizers.SGD(1e-4), loss="sparse_categorical_crossentropy")
data = tf.data.Dataset.from_tensors((np.zeros((8, 96, 96, 3), "float32"), np.zeros(8, "int64")))
data = tfdist.shard(data.repeat())
over, reads = threading.Event(), []

def read():
    while not over.wait(1):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
            reads.append(len(page.read()))

def fit(*more):
    callbacks = [tfdist.callbacks.DataParallel(scale_learning_rate=False), *more]
    tfdist.barrier()
    start = time.perf_counter()
    model.fit(data, steps_per_epoch=steps, verbose=0, callbacks=callbacks)
    return max(tfdist.allgather_object(time.perf_counter() - start)) / steps

fit()
seconds = {"without": [], "with": []}
for number in range(rounds):
    for kind in ("without", "with") if number % 2 == 0 else ("with", "without"):
        if kind == "without":
            seconds[kind].append(fit())
            continue
        over.clear()
        reader = threading.Thread(target=read)
        if tfdist.rank() == 0:
            reader.start()
        tfdist.start_timeline("run.json")
        seconds[kind].append(fit(tfdist.callbacks.Metrics()))
        tfdist.stop_timeline()
        over.set()
        if tfdist.rank() == 0:
            reader.join()
if tfdist.rank() == 0:
    print(json.dumps({**seconds, "reads": len(reads)}))
"""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--ranks", type=int, default=2)
    options.add_argument("--rounds", type=int, default=20)
    options.add_argument("--steps", type=int, default=5, help="of each part of a round")
    options.add_argument("--json", type=Path, metavar="FILE", help="write each round's seconds there as well")
    known = options.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = {"ROUNDS": str(known.rounds), "STEPS": str(known.steps), "TFDIST_METRICS_PORT": str(port)}
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "train.py")
        script.write_text(JOB)
        print("observe: a few minutes ...", flush=True)
        done = subprocess.run(
            [str(Path(sys.executable).with_name("tfdistrun")), "-np", str(known.ranks), sys.executable, str(script)],
            cwd=folder,
            env=os.environ | own | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""},
            stdout=subprocess.PIPE,
            text=True,
            timeout=DEADLINE_S,
            check=True,
        )
        written = sum(file.stat().st_size for file in Path(folder).glob("run.*.json"))
    (line,) = (line for line in done.stdout.splitlines() if '"without"' in line)
    seconds = json.loads(line[line.index("{") :])
    if known.json:
        known.json.write_text(json.dumps(seconds, indent=1))
    ratios = [one / other for one, other in zip(seconds["with"], seconds["without"], strict=True)]
    median, least = ({kind: of(seconds[kind]) for kind in ("without", "with")} for of in (statistics.median, min))
    rows = [[kind, f"{median[kind] * 1e3:.1f}", f"{least[kind] * 1e3:.1f}"] for kind in median]
    rows.append(["ratio", f"{median['with'] / median['without']:.4f}", f"{least['with'] / least['without']:.4f}"])
    print(table.markdown(["step", "median, ms", "least, ms"], rows))
    print(f"median of the ratios of the rounds: {statistics.median(ratios):.4f}")
    print(f"the metrics page was read {seconds['reads']} times")
    print(f"written in the last round: {written / known.steps / known.ranks:.0f} bytes a step and rank")


if __name__ == "__main__":
    main()
