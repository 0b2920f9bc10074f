"""Measures how long a checkpoint holds up training: to a disk, to an object store, and none, in turn.

    python benchmarks/checkpoint.py [--ranks N] [--rounds N] [--starts N] [--megabytes N] [--json FILE]

In each start one job of N ranks (2) trains a model of so many megabytes (40). Of each three epochs one ends with a
checkpoint to the temporary folder's disk, one with one to a moto server on this machine, and one with none. A figure is
the time from the end of an epoch's last step to the beginning of the next one's first, on rank 0. An epoch takes long
enough for the upload. Needs the extras `storage` and `test`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import boto3

from tfdist.command.bench.measure import table

DEADLINE_S = 1800
KINDS = ("none", "disk", "store")
JOB = """
import json, os, time, keras, numpy as np, tensorflow as tf, tfdist
rounds, width, folder = int(os.environ["ROUNDS"]), int(os.environ["WIDTH"]), os.environ["FOLDER"]
kinds, steps = ("none", "disk", "store"), int(os.environ["STEPS"])
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
tfdist.init()
layers = [keras.layers.Dense(width, activation="relu") for _ in range(2)]
model = keras.Sequential([keras.Input((width,)), *layers, keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(1e-4), "mse")
rows = np.random.default_rng(0).normal(size=(64, width)).astype("float32")
data = tf.data.Dataset.from_tensors((rows, rows[:, :1])).repeat()
seconds = {kind: [] for kind in kinds}

class Clock(keras.callbacks.Callback):
    end = None
    def on_train_batch_begin(self, batch, logs=None):
        if self.end is not None:
            seconds[self.kind].append(time.perf_counter() - self.end)
            self.end = None
    def on_train_batch_end(self, batch, logs=None):
        self.last = time.perf_counter()
    def on_epoch_end(self, epoch, logs=None):
        self.kind, self.end = kinds[epoch % 3], self.last

class InTurn(tfdist.callbacks.ModelCheckpoint):
    def __init__(self, turn, path):
        super().__init__(path)
        self.turn = turn
    def on_epoch_end(self, epoch, logs=None):
        if epoch % 3 == self.turn:
            super().on_epoch_end(epoch, logs)

clock = Clock()
callbacks = [clock, tfdist.callbacks.DataParallel(scale_learning_rate=False), InTurn(1, folder + "/disk.keras")]
callbacks += [InTurn(2, "s3://checkpoints/run/model.keras")]
model.fit(tfdist.shard(data), steps_per_epoch=steps, epochs=3 * rounds + 4, verbose=0, callbacks=callbacks)
if tfdist.rank() == 0:
    megabytes = os.path.getsize(folder + "/disk.keras") / 1e6
    print(json.dumps({"seconds": {kind: each[1:] for kind, each in seconds.items()}, "megabytes": megabytes}))
"""
SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2, help="default: 2")
    parser.add_argument("--rounds", type=int, default=10, help="checkpoints of each kind in a start; default: 10")
    parser.add_argument("--starts", type=int, default=3, help="default: 3")
    parser.add_argument("--steps", type=int, default=60, help="steps of an epoch; default: 60")
    parser.add_argument("--megabytes", type=float, default=40, help="size of a checkpoint; default: 40")
    parser.add_argument("--json", metavar="FILE", help="also write all samples, in seconds")
    known = parser.parse_args()

    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        try:
            assert server.stdout is not None
            os.environ |= {
                "AWS_ENDPOINT_URL": f"http://127.0.0.1:{int(server.stdout.readline())}",
                "AWS_ACCESS_KEY_ID": "x",
                "AWS_SECRET_ACCESS_KEY": "y",
                "AWS_DEFAULT_REGION": "us-east-1",
            }
            boto3.client("s3").create_bucket(Bucket="checkpoints")
            starts = []
            for number in range(known.starts):
                print(f"start {number + 1} of {known.starts} ...", file=sys.stderr, flush=True)
                starts.append(run(known))
        finally:
            server.kill()
    print(report(known, starts))
    if known.json:
        Path(known.json).write_text(json.dumps(starts))


def run(known: argparse.Namespace) -> dict:
    """The samples of one start."""
    width = round((known.megabytes * 1e6 / 4 / 2) ** 0.5)
    with tempfile.TemporaryDirectory(prefix="tfdist-") as folder:
        environment = os.environ | {
            "ROUNDS": str(known.rounds), "WIDTH": str(width), "STEPS": str(known.steps), "FOLDER": folder,
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }  # fmt: skip
        words = [sys.executable, "-m", "tfdist.launch", "-np", str(known.ranks), sys.executable, "-c", JOB]
        done = subprocess.run(
            words, env=environment, cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
    if done.returncode != 0:
        sys.exit(f"the job failed:\n{done.stdout}{done.stderr}")
    line = next(line for line in done.stdout.splitlines() if '"seconds"' in line)
    return json.loads(line[line.index("{") :])


def report(known: argparse.Namespace, starts: list[dict]) -> str:
    rows = []
    for number, start in enumerate(starts, 1):
        times = [start["seconds"][kind] for kind in KINDS]
        figures = [f"{1e3 * of(each):.0f}" for each in times for of in (statistics.median, min)]
        ratios = [f"{of(times[2]) / of(times[1]):.2f}" for of in (statistics.median, min)]
        rows.append([str(number), *figures, *ratios])
    head = [f"{kind} {of}, ms" for kind in KINDS for of in ("median", "min")]
    size = f"{starts[0]['megabytes']:.0f} MB, {known.ranks} ranks, {known.rounds} checkpoints of each kind in a start"
    return f"{size}\n\n{table.markdown(['start', *head, 'store/disk median', 'min'], rows)}"


if __name__ == "__main__":
    main()
