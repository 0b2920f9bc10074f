"""The wheel stays as it is when TensorFlow or MPI change under it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bare_root import Bare, follow, install, replace

SUM = """
import tensorflow as tf
import tfdist

tfdist.init()
total = tfdist.allreduce(tf.constant([1.0 + tfdist.rank()]), op=tfdist.Sum)
print(f"sum {float(total[0]):g} of {tfdist.size()} with {tf.__version__}")
"""


def test_another_tensorflow_needs_no_new_installation(bare: Callable[[str], Bare], wheel: Path) -> None:
    here = bare("3.11")
    install(here, wheel, "tensorflow-cpu==2.20.0")
    for version in ("2.20.0", "2.21.0", "2.18.1"):
        replace(here, f"tensorflow-cpu=={version}")
        done = here.run("/venv/bin/tfdistrun", "-np", "2", "/venv/bin/python", "-c", SUM)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count(f"sum 3 of 2 with {version}") == 2
    replace(here, "tensorflow-cpu==2.15.1")
    done = here.run("/venv/bin/python", "-c", SUM)
    assert done.returncode != 0
    for fact in ("TensorFlow 2.15.1 is installed", "2.16, 2.17, 2.18, 2.19, 2.20, 2.21", "tensorflow-cpu==2.21.*"):
        assert fact in done.stderr
    follow(here, done.stderr)
    assert "sum 1 of 1 with 2.21" in here.run("/venv/bin/python", "-c", SUM).stdout


def test_without_mpi_the_ranks_are_connected_by_sockets(bare: Callable[[str], Bare], wheel: Path) -> None:
    here = bare("3.11")
    install(here, wheel, "tensorflow-cpu==2.21.0", extra="")
    done = here.run("/venv/bin/python", "-c", SUM)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sum 1 of 1 with 2.21.0" in done.stdout
    done = here.run("/venv/bin/tfdistrun", "-np", "2", "/venv/bin/python", "-c", SUM)
    assert done.stdout.count("sum 3 of 2") == 2, done.stdout + done.stderr
    done = here.run("/venv/bin/tfdistrun", "--mpi", "-np", "2", "/venv/bin/python", "-c", SUM)
    assert done.returncode != 0
    assert "no mpirun found" in done.stderr
    follow(here, done.stderr)
    done = here.run("/venv/bin/tfdistrun", "--mpi", "-np", "2", "/venv/bin/python", "-c", SUM)
    assert done.stdout.count("sum 3 of 2") == 2, done.stdout + done.stderr
