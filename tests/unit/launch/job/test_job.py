"""Tests of tfdist.launch.job.job: the whole course of jobs without a process or a clock."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Sequence

import pytest

from tfdist.launch.job.job import (
    BACKUP_S,
    ELASTIC_GRACE_S,
    GRACE_S,
    INTERRUPT_S,
    KILL_S,
    RELEASE_AFTER_KILL_S,
    RELEASE_S,
    TERM_S,
    Action,
    Do,
    Job,
    Obstacle,
    Phase,
)
from tfdist.launch.job.outcome import CLOSED, LostHost, Outcome

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
    assert job.end_starter(0, 902) == []
    assert (job.phase, job.status) == (Phase.OVER, 0)


@pytest.mark.parametrize("least", [None, 1])
def test_the_others_hear_of_a_rank_that_ends_well_without_a_word(least: int | None) -> None:
    job = Job(("h0", "h1", "h2", "h3"), 30.0, 0.0, (), least)
    for rank in range(4):
        job.connect(rank, f"h{rank}")
        job.start(rank)
    for rank in (0, 1, 2):
        job.join(rank)
    job.part(0)
    job.join(0)  # a second program in its place has started tfdist again
    job.part(1)
    assert job.finish(_ended(1), 1) == [], "it has shut tfdist down"
    assert job.finish(_ended(3), 2) == [], "it has never started tfdist"
    assert (job.finish(_ended(0), 3), job.phase) == ([Action(Do.GONE, rank=0)], Phase.RUNNING)
    assert job.finish(_ended(2), 4) == [RELEASE]
    there = (0, 1, 2, 3) if least is None else (1, 2, 3)  # nobody needs to hear of the last one, so it is not let go
    assert (job.silent, job.status, job.present, len(job.visited)) == ({0}, 0, there, 4)


def test_terminated_or_failed_rank_does_not_end_silently() -> None:
    job = _job()
    for rank in range(3):
        job.join(rank)
    job.finish(_ended(0, 0, told=True), 1)
    job.finish(_ended(1, 3), 1)
    assert job.silent == set()


def test_mpirun_success_without_records_is_failure() -> None:
    job = _job(connected=0)
    job.end_starter(0, 1)
    assert (job.phase, job.status) == (Phase.OVER, 1)


def test_ranks_that_were_only_told_to_end_give_no_status() -> None:
    job = _job(2)
    assert job.end_starter(0, 1) == [TERM]
    for rank in range(2):
        job.finish(_ended(rank, None, signal.SIGTERM, told=True), 2)
    assert job.status == 1


def test_mpirun_ends_while_ranks_run() -> None:
    job = _job(2)
    assert job.end_starter(0, 1) == [TERM]
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


def test_failure_counts_from_its_report_not_the_exit() -> None:
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


@pytest.mark.parametrize(
    ("signum", "status", "sent"),
    [
        (signal.SIGINT, 130, signal.SIGINT),
        (signal.SIGTERM, 143, signal.SIGTERM),
        (signal.SIGHUP, 129, signal.SIGTERM),  # as a scheduler's: a rank may write a checkpoint
    ],
)
def test_interrupt(signum: int, status: int, sent: int) -> None:
    job = _job(2)
    assert job.interrupted(signum, 10) == [Action(Do.SIGNAL, sent)]
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


def test_interrupt_leaves_little_time_after_the_first_exit() -> None:
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
    assert job.told_to_end, "so that it is not started anew"


def test_job_that_is_told_to_end_when_it_is_being_killed() -> None:
    job = _job(2)
    job.finish(_ended(1, 7), 10)
    job.tick(job.deadline)
    job.tick(job.deadline)
    assert (job.phase, job.told_to_end) == (Phase.KILL, False)
    assert job.interrupted(signal.SIGTERM, 20) == []
    assert (job.interrupt, job.told_to_end) == (None, True)


def test_unresponsive_rank_differs_from_one_never_started() -> None:
    job = _job(3, connected=2)
    job.finish(_ended(0, 5), 10)
    while job.deadline is not None:
        job.tick(job.deadline)
    assert job.outcomes[1] == Outcome(1, "h1", told=True, lost="no longer answered")
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


def test_hosts_that_close_after_another_are_doubtful() -> None:
    """mpirun may have ended what ran there."""
    job = _hosts("a", "b", "c", "c", elsewhere="abc")
    _lost(job, 1, CLOSED)
    assert job.doubtful == ()
    for rank in (0, 3, 2):
        _lost(job, rank, CLOSED)
    assert job.doubtful == ("a", "c")
    job.spare(["c"])
    assert [lost.name for lost in job.lost_hosts] == ["b", "a"]
    assert (job.first_to_fail, job.status) == (1, 1)


def test_hosts_that_were_silent_are_not_doubtful() -> None:
    job = _hosts("a", "b")
    _lost(job, 0)
    _lost(job, 1)
    assert job.doubtful == ()


def test_ranks_told_to_end_that_do_not_answer_lose_no_host() -> None:
    job = _hosts("a", "b")
    job.finish(Outcome(0, "a", 3), 10.0)
    while job.deadline is not None:
        job.tick(job.deadline)
    assert job.outcomes[1].lost
    assert job.lost_hosts == ()


def _elastic(ranks: int, least: int, late: Sequence[int] = ()) -> Job:
    """All have started; those that are `late` have not joined."""
    job = Job(tuple(f"h{rank}" for rank in range(ranks)), 30.0, 0.0, (), least)
    for rank in range(ranks):
        job.connect(rank, f"h{rank}")
        job.start(rank)
        if rank not in late:
            job.join(rank)
    return job


def test_rank_is_survived() -> None:
    job = _elastic(4, 2)
    assert job.finish(_ended(2, None, signal.SIGKILL), 5) == [Action(Do.RELEASE, rank=2)]
    assert (job.phase, job.deadline, job.survived, job.cause, job.first_to_fail) == (
        Phase.RUNNING,
        None,
        {2: 3},
        None,
        None,
    )
    assert job.finish(_ended(0, 7), 6) == [Action(Do.RELEASE, rank=0)]
    assert job.survived == {2: 3, 0: 2}
    for rank in (1, 3):
        job.part(rank)
    assert job.finish(_ended(1), 7) == []
    assert job.finish(_ended(3), 8) == [RELEASE]
    assert (job.status, job.obstacle, job.complete) == (0, None, True)


def test_too_few_are_left() -> None:
    job = _elastic(3, 2)
    job.finish(_ended(0, None, signal.SIGKILL), 5)
    job.finish(_ended(2, 9), 6)
    assert (job.phase, job.deadline, job.obstacle) == (Phase.GRACE, 6 + ELASTIC_GRACE_S, Obstacle.TOO_FEW)
    assert job.finish(_ended(1, 1), 7) == [RELEASE]
    assert job.cause == _ended(2, 9), "neither the one that was survived nor the one that followed"
    assert (job.first_to_fail, job.status, job.survived) == (2, 9, {0: 2})


@pytest.mark.parametrize("late", [(0,), (0, 2), (0, 1, 2)])
def test_rank_that_fails_before_it_has_joined_is_not_survived(late: tuple[int, ...]) -> None:
    job = _elastic(3, 1, late)
    assert job.finish(_ended(0, 4), 1) == []
    assert (job.phase, job.obstacle, job.status, job.survived) == (Phase.GRACE, Obstacle.JOINING, 4, {})


def test_program_that_cannot_be_started_is_not_survived() -> None:
    """Its record comes without a start."""
    job = Job(("h0", "h1"), 30.0, 0.0, (), 1)
    for rank in range(2):
        job.connect(rank, f"h{rank}")
    job.start(0)
    job.join(0)
    job.finish(_ended(1, 127), 1)
    assert (job.obstacle, job.status) == (Obstacle.JOINING, 127)


def test_failure_after_a_rank_has_ended_well_is_an_error() -> None:
    job = _elastic(3, 1)
    job.finish(_ended(1), 5)
    job.finish(_ended(2, None, signal.SIGKILL), 6)
    assert (job.phase, job.obstacle) == (Phase.GRACE, Obstacle.ENDING)
    assert job.finish(_ended(0), 6.5) == [RELEASE]
    assert job.status == 137


def test_ranks_without_a_record_are_survived_with_their_host() -> None:
    """A supervisor was killed, or the host is lost with all its ranks."""
    job = Job(("a", "b", "b"), 30.0, 0.0, "b", 1)
    for rank, name in enumerate("abb"):
        job.connect(rank, name)
        job.start(rank)
        job.join(rank)
    assert job.finish(Outcome(1, "b", lost=CLOSED), 5) == [Action(Do.RELEASE, rank=1)]
    assert (job.phase, job.survived, job.hosts_survived) == (Phase.RUNNING, {1: 2}, ())
    assert job.finish(Outcome(2, "b", lost=CLOSED), 5) == [Action(Do.RELEASE, rank=2)]
    assert (job.phase, job.survived, job.hosts_survived) == (Phase.RUNNING, {1: 2, 2: 1}, ("b",))
    assert job.lose("b", "left", 6) == []


@pytest.mark.parametrize(("least", "joined"), [(1, 3), (2, 3), (1, 2)])
def test_host_whose_agent_is_gone(least: int, joined: int) -> None:
    """All of its ranks are survived, or none is."""
    job = Job(("a", "b", "b"), 30.0, 0.0, "b", least)
    for rank, name in enumerate("abb"):
        job.connect(rank, name)
        job.start(rank)
        if rank < joined:
            job.join(rank)
    actions = job.lose("b", "left", 6)
    if least == 1 and joined == 3:
        assert actions == [Action(Do.RELEASE, rank=1), Action(Do.RELEASE, rank=2)]
        assert (job.phase, job.survived, job.hosts_survived) == (Phase.RUNNING, {1: 1, 2: 1}, ("b",))
        assert job.finish(_ended(0, 0), 7) == [RELEASE]
        assert job.status == 0
    else:
        assert (actions, job.phase, job.survived, job.hosts_survived) == ([], Phase.GRACE, {}, ())


def test_rank_that_hangs_is_ended_and_survived() -> None:
    job = _elastic(3, 1)
    job.hang(1)
    assert job.finish(_ended(1, None, signal.SIGKILL, told=True), 5) == [Action(Do.RELEASE, rank=1)]
    assert (job.phase, job.survived) == (Phase.RUNNING, {1: 2})


@pytest.mark.parametrize("begin", ["interrupt", "mpirun", "told", "function"])
def test_what_ends_a_job_is_not_survived(begin: str) -> None:
    job = _elastic(3, 1)
    first = _ended(1, None, signal.SIGTERM, told=True)
    if begin == "interrupt":
        assert job.interrupted(signal.SIGTERM, 1) == [TERM]
    elif begin == "mpirun":
        assert job.end_starter(0, 1) == [TERM]
    elif begin == "told":
        job.finish(first, 1)
    else:
        job.fail(1, 1)
    assert job.phase != Phase.RUNNING
    for outcome in (first, _ended(0, 3), _ended(2)):
        job.finish(outcome, 2)
    assert (job.survived, job.obstacle) == ({}, None)
    assert job.status == {"interrupt": 143, "mpirun": 3, "told": 3, "function": 143}[begin]


def test_interrupt_after_a_loss() -> None:
    job = _elastic(3, 1)
    job.finish(_ended(0, None, signal.SIGKILL), 1)
    assert job.interrupted(signal.SIGINT, 2) == [Action(Do.SIGNAL, signal.SIGINT)]
    job.finish(_ended(1, None, signal.SIGINT, told=True), 3)
    assert job.finish(_ended(2, None, signal.SIGINT, told=True), 3) == [RELEASE]
    assert (job.status, job.survived) == (130, {0: 2})


# How a rank ends in the courses below.
WELL, FAILED, VANISHED = "well", "failed", "vanished"


def _expected(order: Sequence[int], ends: Sequence[str], least: int, late: int) -> tuple[dict[int, int], int | None]:
    """By the rules alone: the ranks survived, and the one that ended the job.

    The first `late` of `order` have not joined when they end.
    """
    survived: dict[int, int] = {}
    for place, (rank, end) in enumerate(zip(order, ends, strict=True)):
        if end == WELL:
            continue
        left = len(order) - place - 1
        if WELL in ends[:place] or left < least or place < late:
            return survived, rank
        survived[rank] = left
    return survived, None


def _follow(order: Sequence[int], ends: Sequence[str], least: int, late: int) -> None:
    job = _elastic(len(order), least, order[:late])
    survived, culprit = _expected(order, ends, least, late)
    actions, phases = [], []
    for rank, end in zip(order, ends, strict=True):
        code = {WELL: 0, FAILED: 50 + rank, VANISHED: None}[end]
        if end == WELL:
            job.part(rank)
        actions += job.finish(_ended(rank, code), 1.0)
        phases.append(job.phase)
    before = len(order) if culprit is None else order.index(culprit)
    assert phases == [*([Phase.RUNNING] * before + [Phase.GRACE] * len(order))[: len(order) - 1], Phase.RELEASED]
    assert actions == [*(Action(Do.RELEASE, rank=rank) for rank in survived), RELEASE]
    assert job.survived == survived
    assert job.cause == job.outcomes.get(culprit)
    well = job.cause is None
    assert job.status == (0 if well else job.cause.status)
    assert not well or ends.count(WELL) >= least


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_every_course_of_small_elastic_jobs(ranks: int) -> None:
    """Any order of the ranks' ends, any way to end for each, any limit, and up to two that have not joined."""
    for order in itertools.permutations(range(ranks)):
        for ends in itertools.product((WELL, FAILED, VANISHED), repeat=ranks):
            for least, late in itertools.product(range(1, ranks + 1), range(min(ranks, 2) + 1)):
                _follow(order, ends, least, late)


def test_rank_that_was_told_to_end_is_survived() -> None:
    job = _elastic(3, 1)
    assert job.retire(1, 5) == []
    assert job.phase == Phase.RUNNING
    assert job.finish(_ended(1, 75), 6) == [Action(Do.RELEASE, rank=1)]
    assert job.retired == {1}


def test_ranks_leaving_on_interrupt_wait_briefly_for_others() -> None:
    job = _elastic(3, 1)
    job.interrupted(signal.SIGTERM, 10)
    job.retire(1, 11)
    assert job.finish(_ended(1, 75, told=True), 12) == []
    job.retire(2, 12)
    assert job.deadline == 11 + GRACE_S
    job.finish(_ended(2, 75, told=True), 12)
    assert job.tick(11 + GRACE_S) == [TERM]
    assert job.finish(_ended(0, None, signal.SIGKILL, told=True), 15) == [RELEASE]
    assert job.status == 143


def test_supervisors_that_write_to_a_disk_have_time_for_it() -> None:
    job = _elastic(4, 1)
    job.wait_for_backup(1)
    assert (job.phase, job.deadline) == (Phase.RUNNING, None)
    assert job.finish(_ended(2, None, signal.SIGKILL), 5) == [Action(Do.RELEASE, rank=2)]
    job.finish(_ended(0, None), 6)
    assert job.present == (1, 3), "neither the one that was let go nor the one that vanished"
    job.finish(_ended(1, 1), 6)
    assert (job.finish(_ended(3, 1), 7), job.deadline) == ([RELEASE], 7 + RELEASE_S)
    job.wait_for_backup(8)
    assert job.deadline == 8 + BACKUP_S
