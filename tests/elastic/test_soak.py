"""One rank after another is killed and replaced: the others keep their processes, memory and descriptors.

`make soak` has two hundred of each.
"""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest
import soak
from elastic_job import DEVICES

pytestmark = pytest.mark.slice("elastic")

SIZE = 3
SAMPLED = bool(os.environ.get("TFDIST_TEST_SAMPLE"))
ROUNDS = 4 if SAMPLED else 200
# After these, what is made once is there.
FIRST_ROUNDS = 3 if SAMPLED else 100
SECONDS_A_ROUND = 90
# A commit, and what goes with it, is there in some moments and not in others.
KILOBYTES_OF_A_MOMENT = 2048 if SAMPLED else 512
KILOBYTES_A_LOSS = 2
# TensorFlow keeps a gauge for each place in memory at which a model of tf.data has been, so that each epoch adds some
# until all places have been taken; `History` keeps a number or two.
KILOBYTES_AN_EPOCH = 1.5
# Of the notes before; the least of them is without what is there for a moment.
NOTES = 8


@dataclass(frozen=True)
class Note:
    """A line of soak.py."""

    rank: int
    size: int
    kilobytes: int
    descriptors: int
    traces: int
    waits: int
    seed: tuple[int, ...]


@pytest.fixture
def job(tmp_path):
    words = ["-np", str(SIZE), "--elastic", "--blacklist-cooldown-range", "0.1", "0.1", sys.executable, soak.__file__]
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONMALLOC": "malloc"} | DEVICES
    with open(tmp_path / "output", "wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tfdist.launch", *words],
            cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip
    yield process
    print((tmp_path / "output").read_text()[-5000:])  # shown if the test fails
    process.terminate()
    process.wait(60)


def notes_of(path):
    found = []
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            *counts, first, second = map(int, line.split())
            found.append(Note(*counts, (first, second)))
    return found


def growth(settled, notes):
    """By how many kilobytes the memory has grown between two notes, and how much that may be.

    Args:
        settled: The notes of a process up to the first one.
        notes: Its notes up to the second one.
    """
    grown = min(note.kilobytes for note in notes[-NOTES:]) - min(note.kilobytes for note in settled[-NOTES:])
    epochs = len(notes) - len(settled)
    return grown, KILOBYTES_OF_A_MOMENT + KILOBYTES_A_LOSS * (ROUNDS - FIRST_ROUNDS) + KILOBYTES_AN_EPOCH * epochs


def test_losses_and_joins_in_turn(tmp_path, job, wait_until):
    gone = set()

    def present():
        """The processes that have all trained together for an epoch, after which weights are compared; their notes."""
        assert job.poll() is None, (tmp_path / "output").read_text()[-3000:]
        notes = {path.stem: notes_of(path) for path in tmp_path.glob("*.log") if path.stem not in gone}
        whole = {name: own for name, own in notes.items() if len(own) > 1 and own[-1].size == own[-2].size == SIZE}
        return whole if {own[-1].rank for own in whole.values()} == set(range(SIZE)) and len(whole) == SIZE else None

    def all_present():
        wait_until(present, seconds=SECONDS_A_ROUND, what=f"{SIZE} ranks after {len(gone)} losses")
        return present() or all_present()

    first = next(name for name, notes in all_present().items() if notes[-1].rank == 0)
    settled = None
    for turn in range(ROUNDS):
        # The one that came last, or the one that has been there longest.
        victim = next(name for name, notes in all_present().items() if notes[-1].rank == 1 + turn % 2)
        gone.add(victim)
        os.kill(int(victim.partition("-")[0]), signal.SIGKILL)
        notes = all_present()[first]
        if turn + 1 == FIRST_ROUNDS:
            settled = notes
    last = all_present()
    grown, most = growth(settled, notes)
    assert grown <= most
    note, before = notes[-1], settled[-1]
    assert note.rank == 0
    assert note.traces == before.traces, "the step was traced again"
    assert note.waits == 0, "an iterator was destroyed in the main thread"
    assert note.descriptors == before.descriptors
    assert len({own[-1].seed for own in last.values()}) == SIZE
    (tmp_path / "enough").touch()
    assert job.wait(SECONDS_A_ROUND) == 0, (tmp_path / "output").read_text()[-3000:]
    weights = [np.load(tmp_path / f"{name}.npz") for name in last]
    for other in weights[1:]:
        for name in weights[0].files:
            np.testing.assert_array_equal(weights[0][name], other[name])
