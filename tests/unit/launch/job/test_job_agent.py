"""Tests of tfdist.launch.job.job and summary for hosts whose ranks an agent starts: the loss of an agent."""

from __future__ import annotations

import signal

import pytest

from tfdist.launch.job import summary
from tfdist.launch.job.job import EXPLAIN_S, GRACE_S, Action, Do, Job, Phase
from tfdist.launch.job.outcome import LostHost, Outcome

HOSTS = ("a", "a", "b", "b")
HOW = "lost its agent"


def _job(connected: int = 4, started: int = 4, least: int | None = None) -> Job:
    job = Job(HOSTS, 30.0, 0.0, ("a", "b"), least, starter="direct", by_ssh=False)
    for rank in range(connected):
        assert job.connect(rank, HOSTS[rank])
    for rank in range(started):
        job.start(rank)
        job.join(rank)
    return job


def test_lost_while_the_ranks_run() -> None:
    job = _job()
    assert job.lose("b", HOW, 5.0) == []
    assert (job.phase, job.status) == (Phase.GRACE, 1)
    assert job.lost_hosts == (LostHost("b", (2, 3), HOW),)
    assert job.finish(Outcome(0, "a", 1), 6.0) == []
    assert job.finish(Outcome(1, "a", 1), 6.0) == [Action(Do.RELEASE)]
    text = summary.render(job)
    assert text.startswith("host b with ranks 2 and 3 was lost: it lost its agent\n")
    assert "  2     b     lost with its host\n" in text
    assert "ssh" not in text
    assert "mpirun" not in text


def test_lost_before_all_have_started() -> None:
    """Nobody can have an error of its own yet."""
    job = _job(connected=3, started=2)
    assert job.lose("b", HOW, 5.0) == [Action(Do.SIGNAL, signal.SIGTERM)]
    assert job.phase == Phase.TERM
    assert job.lost_hosts == (LostHost("b", (2, 3), HOW),)


def test_lost_before_any_has_connected() -> None:
    job = _job(connected=0, started=0)
    assert job.lose("b", HOW, 5.0) == [Action(Do.RELEASE)]
    assert job.end_starter(1, 5.0) == []
    assert (job.phase, job.status) == (Phase.OVER, 1)


def _signalled(rank: int) -> Outcome:
    """The record of a rank that its own supervisor has ended."""
    return Outcome(rank, HOSTS[rank], None, signal.SIGTERM, told=True)


@pytest.mark.parametrize("least", [None, 2])
@pytest.mark.parametrize("first", [(2,), (3, 2)])
def test_records_that_come_before_the_loss_that_explains_them(least: int | None, first: tuple[int, ...]) -> None:
    """The signal that ends the ranks with their agent may be faster than the end of its connection."""
    job = _job(least=least)
    for rank in first:
        assert job.finish(_signalled(rank), 5.0) == []
        assert job.phase == Phase.RUNNING
    released = [] if least is None else [Action(Do.RELEASE, rank=2), Action(Do.RELEASE, rank=3)]
    assert job.lose("b", HOW, 5.1) == released
    assert job.phase == (Phase.GRACE if least is None else Phase.RUNNING)
    assert job.lost_hosts == (LostHost("b", (2, 3), HOW),)
    assert list(job.survived) == ([] if least is None else [2, 3])
    assert job.tick(5.0 + EXPLAIN_S) == []
    assert job.lost_hosts == (LostHost("b", (2, 3), HOW),)


@pytest.mark.parametrize("least", [None, 2])
def test_signal_that_nothing_explains_is_a_failure(least: int | None) -> None:
    job = _job(least=least)
    job.finish(_signalled(2), 5.0)
    assert job.deadline == 5.0 + EXPLAIN_S
    assert job.tick(4.9 + EXPLAIN_S) == []
    assert 2 in job.running
    released = [] if least is None else [Action(Do.RELEASE, rank=2)]
    assert job.tick(5.0 + EXPLAIN_S) == released
    assert job.lost_hosts == ()
    if least is None:
        assert job.tick(5.0 + EXPLAIN_S + GRACE_S) == [Action(Do.SIGNAL, signal.SIGTERM)]
        assert summary.render(job).startswith("rank 2 on b failed first: killed by SIGTERM")
        assert job.status == 128 + signal.SIGTERM
    else:
        assert job.survived == {2: 3}
        assert job.deadline is None


def test_signal_of_ours_needs_no_explanation() -> None:
    job = _job()
    job.interrupted(signal.SIGTERM, 5.0)
    job.finish(_signalled(2), 5.1)
    assert 2 not in job.running


def test_interrupt_in_the_meantime() -> None:
    job = _job()
    job.finish(_signalled(2), 5.0)
    job.interrupted(signal.SIGTERM, 5.1)
    for rank in (0, 1, 3):
        job.finish(_signalled(rank), 5.2)
    assert job.phase == Phase.INTERRUPTED
    assert job.tick(5.0 + EXPLAIN_S) == [Action(Do.RELEASE)]
    assert job.status == 128 + signal.SIGTERM


def test_hosts_whose_ranks_have_all_ended_are_not_to_blame() -> None:
    job = _job()
    for rank in (2, 3):
        job.finish(Outcome(rank, "b", 4), 4.0)
    assert job.lose("b", HOW, 5.0) == []
    assert job.lost_hosts == ()


def test_agent_that_ends_after_the_job() -> None:
    job = _job()
    for rank in range(4):
        job.finish(Outcome(rank, HOSTS[rank], 0), 4.0)
    assert job.lose("b", HOW, 5.0) == []
    assert (job.status, job.lost_hosts) == (0, ())


def test_texts_without_a_program_that_starts_the_ranks() -> None:
    job = _job(started=3)
    job.tick(31.0)
    text = summary.render(job)
    assert text.startswith("not all ranks started in time\n")
    assert text.endswith(
        "next: look at what the agents on b have printed, and check that no firewall blocks the launcher's port; a "
        "slow host needs a longer --start-timeout"
    )
    job = _job()
    job.end_starter(3, 5.0)
    text = summary.render(job)
    assert text.startswith("the ranks' supervisors exited before all ranks did\n")
    assert "the ranks' supervisors' exit status was 3; run with --verbose to see its output" in text
    assert "direct" not in text
