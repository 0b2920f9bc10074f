"""Which of several failed ranks failed by itself."""

from __future__ import annotations

import pytest

from tfdist.launch.job import echo
from tfdist.launch.job.job import Job
from tfdist.launch.job.outcome import Outcome

OWN = ("epoch 1", echo.TRACEBACK, '  File "train.py", line 3, in <module>', "ValueError: no such column")
MISMATCH = (echo.TRACEBACK, '  File "train.py", line 9', "tfdist.errors.MismatchError: rank 1 has finished")
LOST = (echo.TRACEBACK, '  File "train.py", line 9', "tfdist.errors.PeerLostError: rank 1 was lost", "  more")
TOLD = (
    echo.TRACEBACK,
    "tfdist.errors.PeerLostError: rank 1 (host a) was notified by rank 0 (host a) that it has failed.",
)
GRAPH = (
    *(echo.TRACEBACK, "tensorflow.python.framework.errors_impl.UnavailableError: Graph execution error:"),
    "  [[{{node TfdistJoin}}]]",
)
LEFT = ("done", "tfdist rank 0: the ranks are out of step: rank 0 has finished (called shutdown), rank 1 called")


@pytest.mark.parametrize(
    ("tail", "distance"),
    [
        (OWN, 0),
        ((), 0),
        (("killed",), 0),
        ((*LOST, "During handling of the above exception", *OWN), 0),
        ((echo.TRACEBACK, "tensorflow.python.framework.errors_impl.UnavailableError: no such host"), 0),
        (MISMATCH, 1),
        (LOST, 1),
        (GRAPH, 1),
        (LEFT, 2),
        (TOLD, 2),
    ],
)
def test_distance(tail: tuple[str, ...], distance: int) -> None:
    assert echo.distance([f"{line}\n" for line in tail]) == distance


@pytest.mark.parametrize(
    ("tails", "culprit"),
    [
        ((LOST, MISMATCH, OWN), 2),
        ((LEFT, MISMATCH), 1),
        ((MISMATCH, LOST), 0),
        ((TOLD, LOST), 1),
        ((LEFT, LEFT, ()), 2),
        ((OWN, OWN), 0),
    ],
)
def test_culprit_is_who_failed_by_itself(tails: tuple[tuple[str, ...], ...], culprit: int) -> None:
    job = Job(tuple(f"h{rank}" for rank in range(len(tails))), 60.0, 0.0)
    for rank in range(len(tails)):
        job.connect(rank, f"h{rank}")
        job.start(rank)
    for rank, tail in enumerate(tails):
        job.finish(Outcome(rank, f"h{rank}", 1, tail=tail), 1.0 + rank)
    assert job.cause is not None
    assert (job.cause.rank, job.culprit, job.first_to_fail) == (culprit, culprit, 0)


def test_whoever_was_told_to_end_is_no_culprit() -> None:
    job = Job(("a", "b"), 60.0, 0.0)
    for rank in (0, 1):
        job.connect(rank, "ab"[rank])
        job.start(rank)
    job.finish(Outcome(0, "a", 1, tail=MISMATCH), 1.0)
    job.finish(Outcome(1, "b", 1, tail=OWN, told=True), 2.0)
    assert job.culprit == 0
