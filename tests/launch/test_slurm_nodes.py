"""Elastic jobs on two nodes of a real Slurm, on which srun starts agents: a rank is lost, and a node's agent."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from machine import PROGRAM
from slurm_cluster import Slurm, run, started_in

pytestmark = [pytest.mark.starter("direct"), pytest.mark.slice("slurm")]
NODES = ["node1", "node2"]
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
# The last rank kills itself, or the agent of its node, in the middle of an epoch.
TRAIN = """\
import signal, sys
import keras, numpy as np, tensorflow as tf, tfdist

def agent():  # and its supervisors, which are forks of it
    pid, found = os.getpid(), []
    while pid > 1:
        if "summoned" in open(f"/proc/{pid}/cmdline").read():
            found.append(pid)
        pid = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
    return found[-1]

class Fault(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if number == tfdist.size() - 1 == 3 and int(self.model.optimizer.iterations) == 5:
            os.kill(agent() if sys.argv[1] == "node" else os.getpid(), signal.SIGKILL)
            signal.pause()

tfdist.init()
number = tfdist.rank()
print("number", number, "pid", os.getpid(), "on", os.environ["SLURMD_NODENAME"], flush=True)
x = np.random.default_rng(3).normal(size=(240, 4)).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
model.compile("sgd", loss="mse")
data = tfdist.shard(tf.data.Dataset.from_tensor_slices((x, x[:, :1]))).batch(4)
model.fit(data, epochs=2, verbose=0, callbacks=[tfdist.callbacks.DataParallel(elastic=True), Fault()])
np.save(f"weights{number}.npy", np.concatenate([weight.numpy().ravel() for weight in model.weights]))
print("number", number, "pid", os.getpid(), "ends with", tfdist.size(), flush=True)
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory, wait_until: Callable[..., None]) -> Iterator[Slurm]:
    with started_in(tmp_path_factory.mktemp("slurm"), os.environ, wait_until, NODES) as made:
        yield made


def train(launch: Any, slurm: Slurm, fault: str) -> Any:
    launch.script(TRAIN, "train.py")
    (launch.folder / "launch.py").write_text(PROGRAM)
    job = (sys.executable, "launch.py", "--elastic", "--verbose", sys.executable, "train.py", fault)
    return run(launch, slurm, "salloc", "-N2", "--ntasks-per-node=2", *job)


def found(pattern: str, text: str) -> dict[str, str]:
    return dict(re.findall(pattern, text))


@pytest.mark.parametrize(("fault", "left"), [("rank", 3), ("node", 2)])
def test_others_continue_in_place(
    launch: Any, slurm: Slurm, wait_until: Callable[..., None], fault: str, left: int
) -> None:
    done = train(launch, slurm, fault)
    assert done.code == 0, done.stdout + done.stderr
    assert found(r"number (\d) pid \d+ on (\w+)", done.stdout) == {
        "0": "node1",
        "1": "node1",
        "2": "node2",
        "3": "node2",
    }
    began = found(r"number (\d) pid (\d+) on", done.stdout)
    ended = found(r"number (\d) pid (\d+) ends with", done.stdout)
    assert ended == {number: began[number] for number in map(str, range(left))}
    assert set(re.findall(r"ends with (\d)", done.stdout)) == {str(left)}
    assert f"; {left} ranks continue" in done.stderr
    first, *others = (np.load(launch.folder / f"weights{number}.npy") for number in range(left))
    assert np.isfinite(first).all()
    for weights in others:
        np.testing.assert_array_equal(first, weights)
    wait_until(lambda: slurm.jobs() == "", seconds=60, what="the end of the allocation")


@pytest.mark.usefixtures("all_packages")
def test_batch_script_of_the_example(launch: Any, slurm: Slurm, wait_until: Callable[..., None]) -> None:
    """As it stands, but for the time limit of this cluster. Its tfdistrun knows that the nodes are one machine."""
    (launch.folder / "examples").symlink_to(EXAMPLES)
    (launch.folder / "launch.py").write_text(PROGRAM)
    programs = {"tfdistrun": f'exec {sys.executable} launch.py "$@"', "python": f'exec {sys.executable} "$@"'}
    for name, line in programs.items():
        (launch.folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (launch.folder / name).chmod(0o755)
    path = f"ALL,PATH={launch.folder}:{os.environ['PATH']}"
    done = run(launch, slurm, "sbatch", "--wait", "--time=8", f"--export={path}", "examples/jobs/elastic.sbatch")
    (log,) = launch.folder.glob("elastic-*.log")
    said = log.read_text()
    assert done.code == 0, done.stderr + said
    assert "epoch 1: ranks 2" in said
    assert re.search(r"steps: 230, validation accuracy: 0\.9", said), said
    assert not list((launch.folder / "elastic-backup").glob("*.commit"))
    wait_until(lambda: slurm.jobs() == "", seconds=60, what="the end of the job")
