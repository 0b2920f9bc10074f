"""Tests of tfdist.launch.job: the whole course of jobs without a process or a clock."""

from __future__ import annotations

import signal

import pytest

from tfdist.launch.job import (
    GRACE_S,
    INTERRUPT_S,
    KILL_S,
    RELEASE_AFTER_KILL_S,
    TERM_S,
    Action,
    Do,
    Job,
    LostHost,
    Outcome,
    Phase,
)

TERM, KILL = Action(Do.SIGNAL, signal.SIGTERM), Action(Do.SIGNAL, signal.SIGKILL)
RELEASE, ABANDON = Action(Do.RELEASE), Action(Do.ABANDON)


def _job(ranks: int = 3, connected: int | None = None) -> Job:
    job = Job(tuple(f"h{rank}" for rank in range(ranks)), 30.0, 0.0)
    for rank in range(ranks if connected is None else connected):
        assert job.connect(rank, f"h{rank}")
        assert job.start(rank) == []
    return job


def _ended(rank: int, code: int | None = 0, signum: int | None = None, told: bool = False) -> Outcome:
    return Outcome(rank, f"h{rank}", code, signum, told)


def test_all_well() -> None:
    job = _job()
    assert job.deadline is None
    assert job.finish(_ended(1), 5) == []
    assert job.finish(_ended(0), 900) == []
    assert job.finish(_ended(2), 901) == [RELEASE]
    assert job.end_mpirun(0, 902) == []
    assert (job.phase, job.status) == (Phase.OVER, 0)


def test_mpirun_success_without_records_is_failure() -> None:
    job = _job(connected=0)
    job.end_mpirun(0, 1)
    assert (job.phase, job.status) == (Phase.OVER, 1)


def test_ranks_that_were_only_told_to_end_give_no_status() -> None:
    job = _job(2)
    assert job.end_mpirun(0, 1) == [TERM]
    for rank in range(2):
        job.finish(_ended(rank, None, signal.SIGTERM, told=True), 2)
    assert job.status == 1


def test_mpirun_ends_while_ranks_run() -> None:
    job = _job(2)
    assert job.end_mpirun(0, 1) == [TERM]
    job.finish(_ended(0, None, signal.SIGTERM, told=True), 2)
    assert job.finish(_ended(1, None, None), 2) == [RELEASE]
    assert job.phase == Phase.OVER
    assert job.status == 1


def test_escalation_within_ten_seconds() -> None:
    job = _job()
    assert job.finish(_ended(1, 3), 100) == []
    actions = []
    while job.deadline is not None:
        now = job.deadline
        assert job.tick(now - 0.01) == []
        actions += job.tick(now)
    assert actions == [TERM, KILL, RELEASE, ABANDON]
    assert now - 100 == pytest.approx(GRACE_S + TERM_S + KILL_S + RELEASE_AFTER_KILL_S)
    assert now - 100 <= 8
    assert (job.phase, job.status) == (Phase.OVER, 3)


def test_peers_that_follow_shorten_the_grace() -> None:
    job = _job()
    job.finish(_ended(1, None, signal.SIGKILL), 1)
    job.finish(_ended(0, 1), 1.5)
    assert job.finish(_ended(2, 1), 1.6) == [RELEASE]
    assert job.status == 137
    assert job.cause == _ended(1, None, signal.SIGKILL)


def test_cause_is_who_aborted_not_who_was_told() -> None:
    job = _job()
    job.finish(_ended(0, None, signal.SIGTERM, told=True), 1)
    job.finish(_ended(1, 5, told=True), 1.1)
    job.finish(_ended(2, None, signal.SIGTERM, told=True), 1.2)
    assert job.status == 5
    later = _job()
    later.finish(_ended(2, None, signal.SIGTERM, told=True), 1)
    later.finish(_ended(0, 9), 2)
    assert later.status == 9


def test_failure_counts_from_when_it_was_told_not_from_the_end_of_the_process() -> None:
    job = _job()
    assert job.fail(2, 100) == []
    assert job.fail(0, 100.5) == []
    assert job.deadline == 100 + GRACE_S
    job.finish(_ended(0, 1), 101)
    assert job.tick(100 + GRACE_S) == [TERM]
    job.finish(_ended(2, None, signal.SIGTERM, told=True), 104)
    assert job.finish(_ended(1, None, signal.SIGTERM, told=True), 104) == [RELEASE]
    assert job.first_to_fail == 2
    assert job.cause == _ended(2, None, signal.SIGTERM, told=True)
    assert job.status == 128 + signal.SIGTERM


def test_rank_that_only_followed_did_not_fail_first() -> None:
    job = _job(2)
    job.finish(_ended(1, None, signal.SIGTERM, told=True), 1)
    assert job.first_to_fail is None
    job.fail(0, 2)
    assert job.first_to_fail == 0


def test_lost_supervisor_fails_before_those_that_miss_it() -> None:
    job = _job(2)
    job.finish(_ended(1, None), 1)
    job.fail(0, 1.01)
    assert job.first_to_fail == 1


def test_end_of_a_rank_that_has_failed_with_code_0() -> None:
    """It ended its process before its function returned."""
    job = _job(2)
    job.fail(1, 1)
    job.finish(_ended(1, 0), 1)
    assert job.phase == Phase.GRACE
    job.finish(_ended(0, None, signal.SIGTERM, told=True), 5)
    assert job.first_to_fail == 1


def test_failure_before_others_connected() -> None:
    job = _job(connected=1)
    assert job.finish(_ended(0, 4), 1) == [RELEASE]
    assert not job.connect(1, "h1")
    assert job.finish(_ended(1, None), 1.1) == []
    assert job.status == 4


def test_start_timeout() -> None:
    job = _job(connected=1)
    assert job.deadline == 30.0
    assert job.tick(30.0) == [KILL]
    assert job.never_started == (1, 2)
    assert job.finish(_ended(0, None, signal.SIGKILL, told=True), 30.1) == [RELEASE]
    assert job.status == 1


def test_lost_supervisor() -> None:
    job = _job(1)
    assert job.finish(_ended(0, None), 1) == [RELEASE]
    assert job.status == 1


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupt(signum: int, status: int) -> None:
    job = _job(2)
    assert job.interrupted(signum, 10) == [Action(Do.SIGNAL, signum)]
    job.finish(_ended(0), 11)
    assert job.finish(_ended(1), 12) == [RELEASE]
    assert job.status == status


def test_interrupt_escalates() -> None:
    job = _job(2)
    job.interrupted(signal.SIGTERM, 10)
    assert job.interrupted(signal.SIGTERM, 11) == [TERM]
    actions = []
    while job.deadline is not None:
        actions += job.tick(job.deadline)
    assert actions == [TERM, KILL, RELEASE, ABANDON]
    assert job.status == 143


def test_second_ctrl_c() -> None:
    job = _job(2)
    job.interrupted(signal.SIGTERM, 10)
    assert job.interrupted(signal.SIGINT, 11) == [KILL]
    assert job.interrupted(signal.SIGINT, 11) == []
    assert job.status == 143


def test_interrupt_leaves_little_time_after_the_first_rank_has_gone() -> None:
    """The others may sit in a collective with it, where they do not hear of the interrupt."""
    job = _job()
    job.interrupted(signal.SIGINT, 10)
    assert job.deadline == 10 + INTERRUPT_S
    job.finish(_ended(1, None, signal.SIGINT), 11)
    assert job.deadline == 11 + GRACE_S
    job.finish(_ended(0, None, signal.SIGINT), 12)
    assert job.deadline == 11 + GRACE_S, "a later one gives no more time"
    assert job.tick(11 + GRACE_S) == [TERM]


def test_preemption_leaves_its_time_to_every_rank() -> None:
    job = _job()
    job.interrupted(signal.SIGTERM, 10)
    before = job.deadline
    job.finish(_ended(1, 0), 11)
    assert job.deadline == before


def test_interrupt_before_any_rank_is_there() -> None:
    job = _job(2, connected=0)
    assert job.interrupted(signal.SIGINT, 1) == [RELEASE]
    assert job.deadline is not None
    assert job.tick(job.deadline) == [ABANDON]
    assert job.status == 130


def test_interrupt_of_a_job_that_ends_by_itself_is_not_its_cause() -> None:
    """As when compose stops all containers because one has ended."""
    job = _job(2)
    job.finish(_ended(1, 7), 10)
    assert job.interrupted(signal.SIGTERM, 10.1) == [TERM]
    assert job.deadline == 10 + GRACE_S
    assert job.interrupted(signal.SIGINT, 10.2) == [KILL]
    job.finish(_ended(0, None, signal.SIGKILL, told=True), 10.3)
    assert (job.interrupt, job.status) == (None, 7)


def test_rank_that_does_not_answer_the_end_is_told_from_one_that_never_started() -> None:
    job = _job(3, connected=2)
    job.finish(_ended(0, 5), 10)
    while job.deadline is not None:
        job.tick(job.deadline)
    assert job.outcomes[1] == Outcome(1, "h1", told=True, lost="did not answer any more")
    assert 2 not in job.outcomes
    assert (job.status, job.lost_hosts) == (5, ())


HOW = "has not answered for 30 s"


def _hosts(*names: str, elsewhere: str = "ab") -> Job:
    job = Job(names, 30.0, 0.0, elsewhere)
    for rank, name in enumerate(names):
        job.connect(rank, name)
        job.start(rank)
    return job


def _lost(job: Job, rank: int, how: str = HOW) -> None:
    job.finish(Outcome(rank, job.hosts[rank], lost=how), 50.0)


def test_host_is_lost_with_the_last_of_its_ranks() -> None:
    job = _hosts("a", "b", "b", "a")
    _lost(job, 2)
    assert job.lost_hosts == ()
    _lost(job, 1, "closed")
    assert job.lost_hosts == (LostHost("b", (1, 2), HOW),)
    assert (job.phase, job.first_to_fail, job.status) == (Phase.GRACE, 2, 1)
    job.finish(Outcome(0, "a", 1), 51.0)
    job.finish(Outcome(3, "a", None, signal.SIGTERM, told=True), 52.0)
    assert job.lost_hosts == (LostHost("b", (1, 2), HOW),)


def test_ranks_that_ended_before_are_not_lost_with_their_host() -> None:
    job = _hosts("a", "b", "b")
    job.finish(Outcome(1, "b", 0), 40.0)
    _lost(job, 2)
    assert job.lost_hosts == (LostHost("b", (2,), HOW),)


def test_host_of_which_a_rank_answers_is_not_lost() -> None:
    """Only the supervisor of the other one was killed."""
    job = _hosts("a", "b", "b")
    _lost(job, 1)
    job.finish(Outcome(2, "b", None, signal.SIGTERM, told=True), 54.0)
    assert job.lost_hosts == ()


def test_the_launchers_own_machine_is_never_lost() -> None:
    job = _hosts("a", "b", elsewhere="b")
    _lost(job, 0)
    assert job.lost_hosts == ()
    _lost(job, 1)
    assert [lost.name for lost in job.lost_hosts] == ["b"]


def test_ranks_told_to_end_that_do_not_answer_lose_no_host() -> None:
    job = _hosts("a", "b")
    job.finish(Outcome(0, "a", 3), 10.0)
    while job.deadline is not None:
        job.tick(job.deadline)
    assert job.outcomes[1].lost
    assert job.lost_hosts == ()
