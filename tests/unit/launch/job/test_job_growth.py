"""Tests of processes that are to join a job of tfdist.launch.job.job, or are to leave it."""

from __future__ import annotations

import signal

from tfdist.launch.job.job import Action, Do, Job, Phase
from tfdist.launch.job.outcome import Outcome
from tfdist.launch.job.summary import joined, render, strayed, survival


def _job(elsewhere: tuple[str, ...] = ()) -> Job:
    """Two ranks train, and two processes are to join them, on hosts c and d."""
    job = Job(("a", "b"), 30.0, 0.0, elsewhere=elsewhere, least=1, starter="direct")
    for rank in (0, 1):
        job.connect(rank, "ab"[rank])
        job.start(rank)
        job.join(rank)
    assert job.grow(("c", "d"), ("c", "d"), 40.0) == (2, 3)
    return job


def test_newcomers_count_when_they_have_joined() -> None:
    job = _job()
    assert (job.members, job.running, job.deadline, job.missing) == ((0, 1), (0, 1), 40.0, ())
    for rank in (2, 3):
        assert job.connect(rank, "cd"[rank - 2])
        assert not job.is_complete
        job.arrive(rank)
    assert job.is_complete and job.deadline is None
    assert job.admit() == (2, 3)
    assert job.members == (0, 1, 2, 3)
    assert joined(job, (2, 3)) == "ranks 2 and 3 (c, d) have joined; 4 ranks continue"
    lost = Outcome(3, "d", signum=signal.SIGKILL)
    assert job.finish(lost, 50.0) == [Action(Do.RELEASE, rank=3)], "as any other rank, also before it has said so"
    assert job.survived == {3: 3}


def test_newcomer_that_ends_costs_nothing() -> None:
    job = _job()
    job.connect(2, "c")
    job.connect(3, "d")
    job.arrive(3)
    assert job.finish(Outcome(2, "c", code=5), 10.0) == [Action(Do.STRAY, rank=2)]
    assert job.phase == Phase.RUNNING and job.is_complete
    assert strayed(job, 2) == "rank 2 (c) does not join the others, which continue: exit code 5"
    job.admit()
    for rank in (0, 1, 3):
        job.finish(Outcome(rank, "x", code=0), 60.0)
    assert (job.status, job.cause, job.complete, render(job)) == (0, None, True, "")


def test_newcomer_that_does_not_come_in_time() -> None:
    job = _job()
    job.connect(2, "c")
    job.arrive(2)
    assert job.tick(39.0) == []
    assert job.tick(40.0) == [Action(Do.STRAY, rank=3)]
    assert job.is_complete and job.deadline is None
    assert not job.connect(3, "d"), "it comes too late"
    assert "not there in time" in strayed(job, 3)


def test_newcomer_whose_host_is_lost() -> None:
    job = _job(elsewhere=("a", "b"))
    job.connect(2, "c")
    assert job.lose("c", "lost its agent", 10.0) == [Action(Do.STRAY, rank=2)]
    assert (job.lost_hosts, job.phase, job.coming) == ((), Phase.RUNNING, {3})


def test_job_that_ends_before_they_join() -> None:
    job = _job()
    job.connect(2, "c")
    job.finish(Outcome(0, "a", code=0), 10.0)
    assert job.finish(Outcome(1, "b", code=0), 10.0) == [Action(Do.RELEASE)]
    assert job.status == 0


def test_rank_whose_slot_is_taken_away() -> None:
    job = _job()
    job.dismiss(1)
    job.retire(1, 5.0)
    assert job.finish(Outcome(1, "b", code=75, retired=True), 5.0) == [Action(Do.RELEASE, rank=1)]
    told = "rank 1 (b) left at a commit, because its slot was taken away; 1 rank continues (--min-np 1)"
    assert survival(job, 1) == told
