"""Runs the files of ranks/ on several ranks: one job a number of ranks, in which each rank runs the same tests.

A test there is an ordinary function that all ranks run at the same time. A rank that fails ends its run, and with it
the job. The environment has neither TensorFlow nor Keras.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# A collective waits no longer for a rank that failed.
STALL_SECONDS = "60"
LIMIT_SECONDS = 400


@pytest.fixture
def launch(tmp_path, all_packages):
    """Runs Python on ranks; returns the finished process, with both streams as its output."""

    def run(size, *words, options=(), **variables):
        start = [str(Path(sys.executable).with_name("tfdistrun")), "--no-mpi", "-np", str(size), *options]
        return subprocess.run(
            [*start, sys.executable, *map(str, words)],
            env=os.environ | {"TFDIST_STALL_CHECK_SHUTDOWN_TIME": STALL_SECONDS, "OMP_NUM_THREADS": "1"} | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=tmp_path,
            timeout=LIMIT_SECONDS,
            check=False,
        )

    return run


@pytest.fixture
def refusing():
    """The beginning of a script that may not look for TensorFlow or Keras."""
    return """
import sys
class Refused:
    @staticmethod
    def find_spec(name, path=None, target=None):
        assert name not in ("tensorflow", "keras"), name
sys.meta_path.insert(0, Refused)
"""
