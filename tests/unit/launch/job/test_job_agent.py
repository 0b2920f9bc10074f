"""Tests of tfdist.launch.job.job and summary for hosts whose ranks an agent starts: the loss of an agent."""

from __future__ import annotations

import signal

from tfdist.launch.job import summary
from tfdist.launch.job.job import Action, Do, Job, LostHost, Outcome, Phase

HOSTS = ("a", "a", "b", "b")
HOW = "lost its agent"


def _job(connected: int = 4, started: int = 4) -> Job:
    job = Job(HOSTS, 30.0, 0.0, ("a", "b"), starter="direct", by_ssh=False)
    for rank in range(connected):
        assert job.connect(rank, HOSTS[rank])
    for rank in range(started):
        job.start(rank)
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


def test_records_that_come_first_change_nothing() -> None:
    """The signal that ends the ranks with their agent may be faster than the end of its connection."""
    job = _job()
    job.finish(Outcome(3, "b", 4), 4.0)
    job.finish(Outcome(2, "b", None, signal.SIGTERM, told=True), 5.0)
    assert job.lose("b", HOW, 5.0) == []
    assert job.lost_hosts == (), "both have a record, so the host is not to blame"
    job = _job()
    job.finish(Outcome(2, "b", None, signal.SIGTERM, told=True), 5.0)
    job.lose("b", HOW, 5.0)
    assert job.lost_hosts == (LostHost("b", (2, 3), HOW),)


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
