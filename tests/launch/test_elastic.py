"""Elastic jobs: the ranks that are left go on in place after one is lost, and the launcher ends what cannot go on."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

pytestmark = pytest.mark.starter("direct")

# Ranks that go on as an elastic training does. Each loss is of one rank, ten rounds after the one before.
GO_ON = """\
import tfdist
from tfdist import errors
from tfdist.native import library
from tfdist.world import runtime

def leave_a_child():
    import subprocess
    subprocess.Popen(['sleep', '1000'], start_new_session=True)
    os.kill(os.getpid(), signal.SIGKILL)

def say_much():
    print('\\n'.join(f'line {number}' for number in range(20000)), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

def be_killed():
    os.kill(os.getpid(), signal.SIGKILL)

def exit_with_a_code():
    os._exit(3)

losses = [(int(word.split('=')[0]), globals()[word.split('=')[1]]) for word in sys.argv[1:]]
tfdist.init()
rounds = 0
while losses or rounds < 10:
    rounds += 1
    if losses and losses[0][0] == rank and rounds == 10:
        losses[0][1]()
    try:
        total = sum(1 << number for [number] in library.gather('numbers', [rank]))
    except errors.PeerLostError:
        runtime.renew()
        losses.pop(0)
        rounds = 0
open(f'sum{rank}', 'w').write(str(total))
"""
STAY = "open(f'up{rank}', 'w').close()\nwhile True: time.sleep(0.05)\n"


def _went_on(launch: Any, *ranks: int) -> bool:
    """Whether these ranks, and no others, have added up their own numbers."""
    total = str(sum(1 << rank for rank in ranks))
    return {path.name: path.read_text() for path in launch.files("sum*")} == {f"sum{rank}": total for rank in ranks}


def _host() -> str:
    return os.uname().nodename


@pytest.mark.parametrize(("ranks", "victim"), [(3, 0), (3, 1), (3, 2), (4, 0), (4, 2), (4, 3), (2, 0)])
def test_survivors_go_on(launch: Any, ranks: int, victim: int) -> None:
    launch.script(GO_ON)
    done = launch.run("-np", str(ranks), "--elastic", "python", "rank.py", f"{victim}=be_killed")
    assert done.code == 0, done.stderr
    assert _went_on(launch, *(rank for rank in range(ranks) if rank != victim))
    on = f"{ranks - 1} ranks continue" if ranks > 2 else "1 rank continues"
    lost = f"rank {victim} ({_host()})"
    assert f"tfdistrun: {lost} was killed by signal 9 (SIGKILL); {on} (--min-np 1)\n" in done.stderr
    assert f"tfdistrun: succeeded on {ranks - 1} of {ranks} ranks; lost: {lost}: killed by signal 9" in done.stderr


def test_job_without_a_loss_says_nothing(launch: Any) -> None:
    launch.script(GO_ON + "print('elastic', os.environ['TFDIST_ELASTIC'])\n")
    done = launch.run("-np", "2", "--elastic", "python", "rank.py")
    assert (done.code, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == ["[0] elastic 1", "[1] elastic 1"]


def test_one_after_another(launch: Any) -> None:
    launch.script(GO_ON)
    losses = ("1=be_killed", "3=exit_with_a_code")
    done = launch.run("-np", "4", "--min-np", "2", "python", "rank.py", *losses)
    assert done.code == 0, done.stderr
    assert _went_on(launch, 0, 2)
    said = [line for line in done.stderr.splitlines() if "--min-np" in line]
    assert said == [
        f"tfdistrun: rank 1 ({_host()}) was killed by signal 9 (SIGKILL); 3 ranks continue (--min-np 2)",
        f"tfdistrun: rank 3 ({_host()}) ended with exit code 3; 2 ranks continue (--min-np 2)",
    ]
    assert "succeeded on 2 of 4 ranks; lost: rank 1 " in done.stderr


def test_what_the_lost_rank_has_started_is_ended(launch: Any, wait_until: Any) -> None:
    """It holds the rank's pipes open, and would outlive it."""
    launch.script(GO_ON + STAY)
    job = launch.start("-np", "3", "--elastic", "python", "rank.py", "1=leave_a_child")
    wait_until(lambda: len(launch.files("up*")) == 2, what="the ranks that go on")
    assert not [words for words in launch.processes().values() if words.startswith("sleep")]
    job.send_signal(signal.SIGTERM)
    assert launch.end(job).code == 143
    assert _went_on(launch, 0, 2)


def test_last_words_are_complete(launch: Any) -> None:
    launch.script(GO_ON)
    done = launch.run("-np", "3", "--elastic", "python", "rank.py", "2=say_much")
    assert done.code == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("[2]")] == [
        f"[2] line {number}" for number in range(20000)
    ]


def test_too_few_are_left(launch: Any) -> None:
    launch.script(GO_ON)
    done = launch.run("-np", "3", "--min-np", "2", "python", "rank.py", "0=be_killed", "2=exit_with_a_code")
    assert done.code == 3
    assert (
        f"tfdistrun: rank 2 on {_host()} failed: exit code 3; the job could not continue without it, since only 1 rank "
        f"was left (--min-np 2)\nrank 0 ({_host()}): killed by signal 9 (SIGKILL), 2 ranks continued\n"
    ) in done.stderr


def test_ranks_that_do_not_go_on_end_the_job(launch: Any) -> None:
    """A script that knows nothing of it: the loss is an error on each rank."""
    launch.script(
        "import tfdist\nfrom tfdist import errors\nfrom tfdist.native import library\ntfdist.init()\n"
        "if rank == 1: open('parent', 'w').write(str(os.getppid()))\nlibrary.gather('numbers', [rank])\n"
        "if rank == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
        "try:\n    while True: library.gather('numbers', [rank])\nexcept errors.PeerLostError:\n"
        # Its supervisor goes when the launcher knows of its end.
        "    while os.path.exists('/proc/' + open('parent').read()): time.sleep(0.01)\n    os._exit(5)\n"
    )
    done = launch.run("-np", "3", "--elastic", "python", "rank.py")
    first, second, *_ = done.stderr[done.stderr.index(" failed: exit code 5; ") :].splitlines()
    assert first.endswith("the job could not continue without it, since no rank was left")
    assert second == f"rank 1 ({_host()}): killed by signal 9 (SIGKILL), 2 ranks continued"
    assert done.code == 5


def test_failure_after_a_rank_has_ended_well(launch: Any) -> None:
    launch.script(
        "from tfdist.protocol import member\nmember.report(member.JOINED)\n"
        "if rank == 0:\n    open('first', 'w').write(str(os.getpid()))\n    sys.exit(0)\n"
        "while not os.path.exists('first') or not open('first').read(): time.sleep(0.01)\n"
        "while os.path.exists('/proc/' + open('first').read()): time.sleep(0.01)\n"
        "time.sleep(0.5)\nsys.exit(6 if rank == 2 else time.sleep(1000))"
    )
    done = launch.run("-np", "3", "--elastic", "python", "rank.py")
    assert done.code == 6
    assert "since other ranks had already finished" in done.stderr
    assert "continue (--min-np" not in done.stderr


@pytest.mark.parametrize("victim", [0, 2])
def test_rank_that_fails_before_it_has_joined(launch: Any, victim: int) -> None:
    """The others wait for it in init."""
    launch.script(
        f"while rank == {victim} and len(os.listdir('up')) < 2: time.sleep(0.01)\n"
        f"if rank == {victim}: sys.exit(7)\nopen(f'up/{{rank}}', 'w').close()\nimport tfdist\ntfdist.init()\n"
    )
    (launch.folder / "up").mkdir()
    done = launch.run("-np", "3", "--elastic", "python", "rank.py")
    assert done.code == 7
    assert done.seconds < 15
    assert f"rank {victim} on {_host()} failed: exit code 7; " in done.stderr
    assert "since it had not joined the others" in done.stderr


def test_ranks_of_tfdist_join_by_init(launch: Any) -> None:
    launch.script(
        "import tfdist\ntfdist.init()\nopen(f'up{rank}', 'w').write(str(os.getppid()))\n"
        "while not all(os.path.exists(f'up{r}') and open(f'up{r}').read() for r in (0, 1)): time.sleep(0.01)\n"
        "if rank == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
        "while os.path.exists('/proc/' + open('up1').read()): time.sleep(0.01)\nos._exit(0)\n"
    )
    done = launch.run("-np", "2", "--elastic", "python", "rank.py")
    assert done.code == 0, done.stderr
    assert f"tfdistrun: rank 1 ({_host()}) was killed by signal 9 (SIGKILL); 1 rank continues" in done.stderr


def test_supervisor_that_is_killed_takes_its_rank_alone(launch: Any, wait_until: Any) -> None:
    told = "    rounds += 1\n    if rounds == 5: open(f'pid{rank}', 'w').write(str(os.getppid()))\n"
    launch.script(GO_ON.replace("    rounds += 1\n", told).replace("rounds == 10", "rounds == 10**9"))
    job = launch.start("-np", "3", "--elastic", "python", "rank.py", "1=be_killed")
    pid = launch.folder / "pid1"
    wait_until(lambda: pid.exists() and pid.read_text(), what="a rank that has joined")
    os.kill(int(pid.read_text()), signal.SIGKILL)
    done = launch.end(job)
    assert done.code == 0, done.stderr
    assert _went_on(launch, 0, 2)
    assert f"rank 1 ({_host()}) was lost: it closed its connection without a record; 2 ranks continue" in done.stderr


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupt_ends_the_ranks_that_went_on(launch: Any, wait_until: Any, signum: int, code: int) -> None:
    launch.script(GO_ON + STAY)
    job = launch.start("-np", "3", "--elastic", "python", "rank.py", "1=be_killed")
    wait_until(lambda: len(launch.files("up*")) == 2, what="the ranks that go on")
    job.send_signal(signum)
    done = launch.end(job)
    assert done.code == code
    assert done.seconds < 8
    assert f"tfdistrun: interrupted by {signal.Signals(signum).name}\nrank 1 (" in done.stderr


def test_rank_that_hangs_is_ended(launch: Any) -> None:
    """When one of the others has waited for too long, and says so."""
    launch.script(
        "from tfdist.protocol import member\nmeet(4)\n"
        + GO_ON.replace(
            "exit_with_a_code():\n", "exit_with_a_code():\n    os.kill(os.getpid(), signal.SIGSTOP)\n"
        ).replace(
            "except errors.PeerLostError:",
            "except (errors.PeerLostError, errors.StallError) as error:\n"
            "        if isinstance(error, errors.StallError): member.report(member.STALLED)",
        )
    )
    limit = {"TFDIST_STALL_CHECK_SHUTDOWN_TIME": "3", "TFDIST_STALL_CHECK_WARNING_TIME": "0"}
    done = launch.run("-np", "4", "--elastic", "python", "rank.py", "2=exit_with_a_code", variables=limit)
    assert done.code == 0, done.stderr
    assert _went_on(launch, 0, 1, 3)
    hung = f"rank 2 ({_host()}) was ended by tfdistrun, because the others had waited for it too long; 3 ranks continue"
    assert hung in done.stderr


def test_group_of_ranks_is_refused(launch: Any) -> None:
    launch.script("import tfdist\ntfdist.init(comm=[0, 1])\n")
    done = launch.run("-np", "2", "--elastic", "python", "rank.py")
    assert done.code == 1
    assert "init(comm=...) received [0, 1] in an elastic job, whose ranks change" in done.stderr
