"""Runs training.py as an elastic job, and compares what it ends with. No test of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import training

SCRIPT = Path(training.__file__)
SECONDS = 240
# As in tests/ranks.
DEVICES = {} if os.environ.get("TFDIST_TEST_GPU") else {"CUDA_VISIBLE_DEVICES": ""}


def run(folder, *words):
    """A Python command, with whatever exit status."""
    return subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"} | DEVICES,
    )  # fmt: skip


def train(folder, size, *options, victims, steps_at_once=1, compiled=False):
    """The job of `size` ranks, of which some are to be lost: see training.py. It leaves no commits.

    Where its launcher is killed, the ranks may still be about to end.
    """
    words = ("-np", str(size), *options, sys.executable, str(SCRIPT), victims, str(steps_at_once), *["xla"] * compiled)
    done = run(folder, "-m", "tfdist.launch", *words)
    assert done.returncode < 0 or not Path((folder / "commits").read_text()).exists()
    return done


def segments_of(output, rank):
    """[epoch, ranks, first iteration] of each piece of the training, as that rank printed it."""
    found = re.findall(rf"^\[{rank}\] segment (\d+) (\d+) (\d+)$", output, re.MULTILINE)
    return [[int(number) for number in segment] for segment in found]


def check_weights(folder, done, ranks, late=()):
    """Of these ranks they are the same, and those of one process that takes the same steps; returns the segments.

    `late` are those of them that were not there all the time.
    """
    assert done.returncode == 0, done.stdout + done.stderr
    segments = segments_of(done.stdout, ranks[0])
    first = _arrays(folder, f"rank-{ranks[0]}")
    for rank in ranks:
        own = segments_of(done.stdout, rank)
        assert own == segments if rank not in late else own[-1] == segments[-1]
        for one, other in zip(first, _arrays(folder, f"rank-{rank}"), strict=True):
            np.testing.assert_array_equal(one, other)
    for one, other in zip(first, training.reference(segments), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    return segments


def _arrays(folder, name):
    with np.load(folder / f"{name}.npz") as file:
        return [file[key] for key in file.files]
