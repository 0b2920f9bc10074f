"""Jobs of a real Slurm on this machine: tfdistrun without -np and -H takes what salloc and sbatch have given it."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from machine import PROGRAM
from slurm_cluster import Slurm, run, started_in

pytestmark = [pytest.mark.starter("mpi"), pytest.mark.slice("slurm")]
TFDISTRUN = (sys.executable, "-m", "tfdist.launch")
# Each rank has data of its own, so that weights are the same only if gradients are exchanged.
TRAIN = """\
import keras, numpy as np, tfdist
tfdist.init()
x = np.random.default_rng(3 + tfdist.rank()).normal(size=(48, 4)).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
model.compile("sgd", loss="mse")
model.fit(x, x[:, :1], batch_size=8, epochs=2, verbose=0, callbacks=[tfdist.callbacks.DataParallel()])
np.save(f"weights{tfdist.rank()}.npy", np.concatenate([weight.numpy().ravel() for weight in model.weights]))
print("rank", tfdist.rank(), "of", tfdist.size(), "on", os.environ["SLURM_JOB_NODELIST"])
"""
# As the machine is: whether Slurm's plugin for PMIx fits the MPI is found by a trial.
CHOICE = re.compile(
    r"tfdistrun: (?:(mpirun) starts the ranks: not srun: \S.*|(srun) starts the ranks: a trial succeeded)\n"
)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory, wait_until: Callable[..., None]) -> Iterator[Slurm]:
    with started_in(tmp_path_factory.mktemp("slurm"), os.environ, wait_until) as made:
        yield made


def _check_choice(said: str, slurm: Slurm) -> None:
    found = CHOICE.search(said)
    assert found is not None, said
    starter = found[1] or found[2]
    assert re.search(rf"tfdistrun: running .*/{starter} ", said), said
    assert f"tfdistrun: 2 ranks on hosts of the allocation {slurm.name}:2, from Slurm's SLURM_JOB_NODELIST" in said


def _check_weights(folder: Path) -> None:
    first, second = (np.load(folder / f"weights{rank}.npy") for rank in range(2))
    assert np.isfinite(first).all()
    np.testing.assert_array_equal(first, second)


def test_training_in_an_allocation(launch: Any, slurm: Slurm) -> None:
    launch.script(TRAIN, "train.py")
    done = run(launch, slurm, "salloc", "-n2", *TFDISTRUN, "--verbose", sys.executable, "train.py")
    assert done.code == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] rank {rank} of 2 on {slurm.name}" for rank in range(2)]
    _check_choice(done.stderr, slurm)
    _check_weights(launch.folder)


def test_training_in_a_batch_job(launch: Any, slurm: Slurm) -> None:
    launch.script(TRAIN, "train.py")
    (launch.folder / "job.sh").write_text(
        f"#!/bin/sh\nexec {shlex.join(TFDISTRUN)} --verbose {sys.executable} train.py\n"
    )
    done = run(launch, slurm, "sbatch", "--wait", "-n2", "--output=said", "job.sh")
    said = (launch.folder / "said").read_text()
    assert done.code == 0, done.stderr + said
    assert {f"[{rank}] rank {rank} of 2 on {slurm.name}" for rank in range(2)} <= set(said.splitlines())
    _check_choice(said, slurm)
    _check_weights(launch.folder)


@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_training_without_mpi(launch: Any, slurm: Slurm, where: str) -> None:
    """On this node by the launcher itself; srun starts an agent on a node that seems to be another one."""
    launch.script(TRAIN + "assert tfdist.gloo_enabled()\n", "train.py")
    (launch.folder / "launch.py").write_text(PROGRAM)
    program = TFDISTRUN if where == "here" else (sys.executable, "launch.py")
    done = run(launch, slurm, "salloc", "-n2", *program, "--no-mpi", sys.executable, "train.py")
    assert done.code == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] rank {rank} of 2 on {slurm.name}" for rank in range(2)]
    _check_weights(launch.folder)


@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_failure_without_mpi(launch: Any, slurm: Slurm, wait_until: Callable[..., None], where: str) -> None:
    launch.script("sys.exit(7) if rank == 1 else time.sleep(1000)")
    (launch.folder / "launch.py").write_text(PROGRAM)
    program = TFDISTRUN if where == "here" else (sys.executable, "launch.py")
    done = run(launch, slurm, "salloc", "-n2", *program, "--no-mpi", sys.executable, "rank.py")
    assert done.code == 7, done.stderr
    assert f"rank 1 on {slurm.name} failed first: exit code 7" in done.stderr
    wait_until(lambda: slurm.jobs() == "", seconds=60, what="the end of the allocation")


def test_failure_ends_the_job_with_its_status(launch: Any, slurm: Slurm, wait_until: Callable[..., None]) -> None:
    launch.script("sys.exit(7) if rank == 1 else time.sleep(1000)")
    done = run(launch, slurm, "salloc", "-n2", *TFDISTRUN, sys.executable, "rank.py")
    assert done.code == 7, done.stderr
    assert f"rank 1 on {slurm.name} failed first: exit code 7" in done.stderr
    wait_until(lambda: slurm.jobs() == "", seconds=60, what="the end of the allocation")


def test_more_ranks_than_were_given(launch: Any, slurm: Slurm) -> None:
    done = run(launch, slurm, "salloc", "-n1", *TFDISTRUN, "-np", "2", "true")
    assert done.code == 2
    assert f"-np 2 exceeds the 1 slots of {slurm.name}:1, from Slurm's" in done.stderr
