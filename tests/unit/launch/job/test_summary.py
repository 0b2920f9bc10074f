"""Tests of tfdist.launch.job.summary."""

from __future__ import annotations

import signal

import pytest

from tfdist.launch.host.host import Host
from tfdist.launch.job import summary
from tfdist.launch.job.job import Job
from tfdist.launch.job.outcome import CLOSED, Outcome


def _job(*outcomes: Outcome, ranks: int = 3) -> Job:
    job = Job(tuple(f"h{rank}" for rank in range(ranks)), 30.0, 0.0)
    for outcome in outcomes:
        job.connect(outcome.rank, outcome.host)
    for outcome in outcomes:
        job.finish(outcome, 1.0)
    return job


def test_nothing_to_say_of_success() -> None:
    assert summary.render(_job(Outcome(0, "h0", 0), ranks=1)) == ""


def test_silent_rank_is_named_beside_the_one_that_waited() -> None:
    job = Job(("h0", "h1"), 30.0, 0.0)
    for rank in range(2):
        job.connect(rank, f"h{rank}")
        job.join(rank)
    job.finish(Outcome(1, "h1", 0), 1.0)
    job.finish(Outcome(0, "h0", 1, tail=("PeerLostError: rank 0 lost rank 1",)), 2.0)
    text = summary.render(job)
    assert "  1     h1    exited with status 0 without tfdist.shutdown(), as os._exit(0) does\n" in text
    assert "next: rank 1 exited with status 0 without tfdist.shutdown(), as os._exit(0) does, before the other" in text


def test_exception() -> None:
    tail = ("noise", "Traceback (most recent call last):", '  File "t.py", line 3', "ValueError: no")
    told = Outcome(2, "h2", None, signal.SIGTERM, told=True)
    text = summary.render(_job(Outcome(1, "h1", 3, tail=tail), Outcome(0, "h0", 0), told))
    assert text == (
        "rank 1 on h1 failed first: exit code 3\n"
        "  rank  host  outcome\n"
        "  0     h0    finished\n"
        "  1     h1    exit code 3\n"
        "  2     h2    terminated by tfdistrun after rank 1 failed\n"
        "last lines of rank 1:\n"
        "  | Traceback (most recent call last):\n"
        '  |   File "t.py", line 3\n'
        "  | ValueError: no\n"
        "next: rank 1 on h1: fix the error above; --output-filename DIR keeps each rank's full output"
    )


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (None, "never started"),
        (Outcome(0, "h", 0), "finished"),
        (Outcome(0, "h", 0, told=True), "finished"),
        (Outcome(0, "h", 2), "exit code 2"),
        (Outcome(0, "h", 2, told=True), "exit code 2 after a signal"),
        (Outcome(0, "h", 75, retired=True), "left at a commit after a signal"),
        (Outcome(0, "h"), "vanished without a record"),
        (Outcome(0, "h", None, 11), "killed by SIGSEGV"),
        (Outcome(0, "h", None, 11, told=True), "killed by SIGSEGV"),
        (Outcome(0, "h", None, 99), "killed by signal 99"),
        (Outcome(0, "h", lost="no longer answered", told=True), "no longer answered after X"),
        (Outcome(0, "h", None, 9, told=True), "terminated by tfdistrun after X (by SIGKILL)"),
    ],
)
def test_outcome(outcome: Outcome | None, text: str) -> None:
    assert summary.outcome_text(outcome, "X") == text


def test_a_rank_that_waited_in_vain_is_not_the_one_to_mend() -> None:
    tail = (
        "Traceback (most recent call last):",
        '  File "t.py", line 3',
        "rank 1 waited (TFDIST_STALL_CHECK_SHUTDOWN_TIME; raise it if",
    )
    text = summary.render(
        _job(Outcome(1, "h1", 1, tail=tail), Outcome(0, "h0", None, signal.SIGTERM, told=True), ranks=2)
    )
    assert text.splitlines()[-1] == (
        "next: rank 1 on h1 timed out waiting for the ranks that its error names; see what they did: their lines "
        "above, or their stacks during the wait (kill -USR1; TFDIST_STACK_DUMP_DIR writes all of them to files)"
    )
    said = ("TFDIST_STALL_CHECK_SHUTDOWN_TIME is 5",)
    assert "fix the error above" in summary.advice(_job(Outcome(0, "h0", 1, tail=said), ranks=1))


def test_a_breakpoint_without_a_terminal() -> None:
    tail = ("Traceback (most recent call last):", '  File "t.py", line 3', "bdb.BdbQuit")
    assert summary.advice(_job(Outcome(0, "h0", 1, tail=tail), ranks=1)) == (
        "rank 0 on h0: breakpoint() found no terminal there. Run the script without tfdistrun, or attach a debugger to "
        "the rank: docs/debugger.md"
    )


def test_a_traceback_is_shown_where_the_first_to_fail_left_none() -> None:
    tail = ("Traceback (most recent call last):", "tfdist.errors.MismatchError: rank 1 has ended")
    ended = Outcome(2, "h2", None, signal.SIGTERM, tail=tail, told=True)
    first = Outcome(1, "h1", 1, tail=("ERROR: out of step",))
    text = summary.render(_job(first, Outcome(0, "h0", 1, tail=tail, told=True), ended))
    job = _elastic(Outcome(2, "h2", 3, tail=tail), Outcome(0, "h0", None, 9), ranks=3, least=2)
    assert "MismatchError" not in summary.render(job)  # of a failure that was survived
    shown = [
        "last lines of rank 1:",
        "  | ERROR: out of step",
        "last lines of rank 0:",
        "  | Traceback (most recent call last):",
        "  | tfdist.errors.MismatchError: rank 1 has ended",
        "next: rank 1 on h1: fix the error above; --output-filename DIR keeps each rank's full output",
    ]
    assert text.splitlines()[-len(shown) :] == shown


@pytest.mark.parametrize(
    ("outcome", "hint"),
    [
        (Outcome(0, "h0", None, signal.SIGKILL), "often the kernel's out-of-memory killer: check dmesg"),
        (Outcome(0, "h0", None, signal.SIGBUS), "/dev/shm"),
        (Outcome(0, "h0", None, 77), "look up what sends this signal"),
        (Outcome(0, "h0"), "its host was lost"),
        (Outcome(0, "h0", None, signal.SIGTERM, told=True), "mpirun's exit status was None; run with --verbose"),
        (Outcome(0, "h0", 1, tail=("no",)), "fix the error above"),
        (
            Outcome(0, "h0", 3),
            "rank 0 on h0 printed nothing: look for what exits with code 3, such as sys.exit(3)",
        ),
        (Outcome(0, "h0", None, signal.SIGABRT, tail=("no",)), "its last lines above say why"),
        (
            Outcome(0, "h0", None, signal.SIGABRT),
            "aborted without a message: run it again with PYTHONFAULTHANDLER=1",
        ),
    ],
)
def test_advice(outcome: Outcome, hint: str) -> None:
    assert hint in summary.advice(_job(outcome, ranks=1))


def test_advice_names_where_the_output_is() -> None:
    said = summary.advice(_job(Outcome(0, "h0", 1, tail=("x",)), ranks=1), output="s3://bucket/logs")
    assert said.endswith("fix the error above; s3://bucket/logs has each rank's full output")


def test_start_timeout_names_ranks_and_hosts() -> None:
    job = _job(ranks=3)
    job.connect(0, "h0")
    job.start(0)
    job.tick(30.0)
    text = summary.render(job)
    assert "not all ranks started in time" in text
    assert "  1     h1    never started" in text
    assert "ssh h1 true" in text
    assert "firewall" in text


def test_long_traceback_is_shortened() -> None:
    shown = summary.last_lines(["Traceback (most recent call last):", *(f"  {number}" for number in range(60))])
    assert len(shown) == 25
    assert (shown[1], shown[-1]) == ("  ...", "  59")
    assert len(summary.last_lines([str(number) for number in range(60)])) == 10


def _elastic(*outcomes: Outcome, ranks: int = 4, least: int = 1) -> Job:
    job = Job(tuple(f"h{rank}" for rank in range(ranks)), 30.0, 0.0, (), least)
    for rank in range(ranks):
        job.connect(rank, f"h{rank}")
        job.start(rank)
        job.join(rank)
    for outcome in outcomes:
        job.finish(outcome, 1.0)
    return job


@pytest.mark.parametrize(
    ("outcome", "ranks", "text"),
    [
        (Outcome(2, "h2", None, 9), 4, "rank 2 (h2) was killed by signal 9 (SIGKILL); 3 ranks continue (--min-np 1)"),
        (Outcome(0, "h0", None, 99), 3, "rank 0 (h0) was killed by signal 99; 2 ranks continue (--min-np 1)"),
        (Outcome(1, "h1", 3), 2, "rank 1 (h1) ended with exit code 3; 1 rank continues (--min-np 1)"),
    ],
)
def test_survival(outcome: Outcome, ranks: int, text: str) -> None:
    assert summary.survival(_elastic(outcome, ranks=ranks), outcome.rank) == text


def test_kept() -> None:
    assert (
        summary.kept(["0-7.commit"], "/d", "")
        == "saved 0-7.commit in /d; run the same command again to continue from there"
    )
    assert summary.kept(["a", "b"], "/d", "").startswith("saved a, b in /d;")
    assert summary.kept([], "/d", "no room") == "the newest commit could not be written to /d: no room"


def test_survival_of_one_that_was_told_to_end() -> None:
    job = _elastic()
    job.finish(Outcome(2, "h2", 75, retired=True), 1.0)
    assert summary.survival(job, 2) == "rank 2 (h2) left at a commit after a signal; 3 ranks continue (--min-np 1)"
    for rank in (0, 1, 3):
        job.finish(Outcome(rank, f"h{rank}", 0), 2.0)
    assert (
        summary.render(job)
        == "succeeded on 3 of 4 ranks; lost: rank 2 (h2): left at a commit after a signal, 3 ranks continued"
    )


def test_good_end_on_fewer_ranks() -> None:
    lost = Outcome(2, "h2", None, 9), Outcome(0, "h0", 5)
    assert summary.render(_elastic(*lost, Outcome(1, "h1", 0), Outcome(3, "h3", 0))) == (
        "succeeded on 2 of 4 ranks; lost: rank 2 (h2): killed by signal 9 (SIGKILL), 3 ranks continued; "
        "rank 0 (h0): exit code 5, 2 ranks continued"
    )
    assert summary.render(_elastic(*(Outcome(rank, f"h{rank}", 0) for rank in range(4)))) == ""


def test_failure_that_is_not_survived_after_one_that_was() -> None:
    tail = ("ValueError: no",)
    ended = Outcome(1, "h1", None, signal.SIGTERM, told=True)
    job = _elastic(Outcome(2, "h2", None, 9), Outcome(0, "h0", 3, tail=tail), ended, ranks=3, least=2)
    assert summary.render(job) == (
        "rank 0 on h0 failed: exit code 3; the job could not continue without it, since only 1 rank was left "
        "(--min-np 2)\n"
        "rank 2 (h2): killed by signal 9 (SIGKILL), 2 ranks continued\n"
        "  rank  host  outcome\n"
        "  0     h0    exit code 3\n"
        "  1     h1    terminated by tfdistrun after rank 0 failed\n"
        "  2     h2    killed by SIGKILL\n"
        "last lines of rank 0:\n"
        "  | ValueError: no\n"
        "next: rank 0 on h0: fix the error above; --output-filename DIR keeps each rank's full output"
    )


@pytest.mark.parametrize(
    ("outcomes", "least", "reason"),
    [
        ([Outcome(0, "h0", 3)], 4, "since only 3 ranks were left (--min-np 4)"),
        ([Outcome(rank, "h", 3) for rank in range(4)], 1, "since no rank was left"),
        ([Outcome(0, "h0", 0), Outcome(1, "h1", 3)], 1, "since other ranks had already finished"),
    ],
)
def test_why_a_failure_was_not_survived(outcomes: list[Outcome], least: int, reason: str) -> None:
    assert summary.render(_elastic(*outcomes, least=least)).splitlines()[0].endswith(reason)


HOW = "has not answered for 30 s (TFDIST_HOST_TIMEOUT)"


def _lost(hosts: str, *lost: int, how: str = HOW) -> Job:
    job = Job(tuple(hosts), 30.0, 0.0, set(hosts))
    for rank, host in enumerate(hosts):
        job.connect(rank, host)
    for rank in lost:
        job.finish(Outcome(rank, hosts[rank], lost=how), 1.0)
    for rank in set(range(len(hosts))) - set(lost):
        job.finish(Outcome(rank, hosts[rank], None, signal.SIGTERM, told=True), 5.0)
    return job


def test_lost_host() -> None:
    assert summary.render(_lost("abb", 2, 1)) == (
        "host b with ranks 1 and 2 was lost: it has not answered for 30 s (TFDIST_HOST_TIMEOUT)\n"
        "  rank  host  outcome\n"
        "  0     a     terminated by tfdistrun after host b was lost\n"
        "  1     b     lost with its host\n"
        "  2     b     lost with its host\n"
        "next: check that host b is up and on the network, and look in the log there for the cause (out of memory: "
        "dmesg)"
    )


def test_hosts_that_cannot_be_reached_are_named() -> None:
    job = Job(("a", "b", "c"), 30.0, 0.0, {"a", "b", "c"})
    assert job.unreached == ("a", "b", "c")
    job.tick(30.0)
    text = summary.render(job, {"b": "no route", "c": "refused"})
    assert text.startswith("not all ranks started in time: hosts b, c cannot be reached by ssh\n")
    assert text.endswith("next: check that hosts b, c are up and on the network: `ssh b true` ends with: no route")
    ended = Job(("a", "b"), 30.0, 0.0, {"a", "b"})
    ended.connect(0, "a")
    assert ended.unreached == ("b",)
    ended.end_starter(255, 1.0)
    ended.finish(Outcome(0, "a", None, signal.SIGTERM, told=True), 2.0)
    text = summary.render(ended, {"b": "no route"})
    assert text.startswith("mpirun exited before all ranks did: host b cannot be reached by ssh\n")


def test_other_starters_are_named_and_ssh_is_not() -> None:
    late = Job(("a", "b"), 30.0, 0.0, {"b"}, starter="srun", by_ssh=False)
    late.tick(30.0)
    assert "run with --verbose to see the output of srun" in summary.render(late)
    assert "ssh" not in summary.render(late)
    ended = Job(("a",), 30.0, 0.0, starter="jsrun")
    ended.end_starter(4, 1.0)
    assert summary.render(ended).startswith("jsrun exited before all ranks did\n")
    assert "jsrun's exit status was 4; run with --verbose to see its output" in summary.render(ended)
    ended.starter_spoke = True
    assert "jsrun's exit status was 4; its messages are above, --verbose shows more" in summary.render(ended)


def test_host_lost_while_the_job_is_interrupted() -> None:
    job = Job(("a", "b"), 30.0, 0.0, {"a", "b"})
    for rank, host in enumerate("ab"):
        job.connect(rank, host)
        job.start(rank)
    job.interrupted(signal.SIGTERM, 1.0)
    job.finish(Outcome(1, "b", lost=HOW), 2.0)
    job.finish(Outcome(0, "a", None, signal.SIGTERM, told=True), 3.0)
    text = summary.render(job)
    assert text.startswith(f"interrupted by SIGTERM\nhost b with rank 1 was lost: it {HOW}\n")
    assert "0     a     terminated by tfdistrun after SIGTERM\n  1     b     lost with its host\nnext: check" in text


def test_several_lost_hosts() -> None:
    text = summary.render(_lost("abc", 1, 2))
    assert text.startswith(f"host b with rank 1 was lost: it {HOW}\nhost c with rank 2 was lost: it {HOW}\n")
    assert "terminated by tfdistrun after host b and 1 more was lost" in text
    assert "check that hosts b, c are up" in text


def test_all_hosts_lost_is_rather_the_launchers_own_loss() -> None:
    assert "check the network of this machine, where tfdistrun ran" in summary.render(_lost("ab", 0, 1))
    assert "check that host a is up" in summary.render(_lost("aa", 0, 1))
    assert "check that hosts a, b are up" in summary.render(_lost("ab", 0, 1, how=CLOSED))


def test_error_of_the_first_to_miss_a_lost_host_is_shown() -> None:
    job = Job(("a", "b"), 30.0, 0.0, {"a", "b"})
    for rank, host in enumerate("ab"):
        job.connect(rank, host)
    job.finish(Outcome(0, "a", 1, tail=("StallError: rank 1 is missing",)), 1.0)
    job.finish(Outcome(1, "b", lost=HOW), 2.0)
    text = summary.render(job)
    assert text.startswith("host b with rank 1 was lost")
    assert "last lines of rank 0:\n  | StallError: rank 1 is missing" in text


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ((3,), "rank 3"),
        ((0, 1, 2), "ranks 0, 1 and 2"),
        ((4, 5, 6, 7), "ranks 4 to 7"),
        ((0, 2, 4, 6), "ranks 0, 2, 4 and 6"),
    ],
)
def test_ranks_text(ranks: tuple[int, ...], text: str) -> None:
    assert summary.ranks_text(ranks) == text


@pytest.mark.parametrize(
    ("hosts", "end"),
    [
        ((Host("a", 1),), "restarting with 1 rank on a:1"),
        ((Host("a", 2), Host("b", 1)), "restarting with 3 ranks on a:2, b:1"),
    ],
)
def test_new_start(hosts: tuple[Host, ...], end: str) -> None:
    assert summary.relaunch("host b was lost\n  a table", hosts) == f"host b was lost; {end}"
    without = ", without c, d, where no rank has made a commit yet"
    assert summary.relaunch("x", hosts, ("c", "d")) == f"x; {end}{without}"


@pytest.mark.parametrize(
    ("outcome", "hangs", "text"),
    [
        (
            Outcome(1, "h", None, 9, told=True),
            True,
            "was ended by tfdistrun, because the others had waited for it too long",
        ),
        (Outcome(1, "h", lost="closed its connection"), False, "was lost: it closed its connection"),
        (Outcome(1, "h", 3), False, "ended with exit code 3"),
        (Outcome(1, "h", None, 9), False, "was killed by signal 9 (SIGKILL)"),
        (Outcome(1, "h", 75, retired=True), False, "left at a commit after a signal"),
    ],
)
def test_rank_that_the_others_survive(outcome: Outcome, hangs: bool, text: str) -> None:
    job = Job(("h", "h", "h"), 30.0, 0.0, least=1)
    for rank in range(3):
        job.connect(rank, "h")
        job.start(rank)
        job.join(rank)
    if hangs:
        job.hang(1)
    job.finish(outcome, 2)
    assert summary.survival(job, 1) == f"rank 1 (h) {text}; 2 ranks continue (--min-np 1)"
