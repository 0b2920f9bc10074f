"""Elastic jobs: the ranks that are left go on in place after one is lost, and the launcher ends what cannot go on."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.starter("mpi")

# Ranks that go on as tfdist does, in MPI's own words. Each loss is of one rank, ten rounds after the one before.
GO_ON = """\
import array
from mpi4py import MPI
from tfdist.protocol import member

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
world = MPI.COMM_WORLD.Dup()
world.Set_errhandler(MPI.ERRORS_RETURN)
world.Barrier()
member.report(member.JOINED)
rounds = 0
while losses or rounds < 10:
    rounds += 1
    if losses and losses[0][0] == rank and rounds == 10:
        losses[0][1]()
    total = array.array('q', [1 << rank])
    try:
        world.Allreduce(MPI.IN_PLACE, total)  # the one for objects uses a communicator of its own, which Revoke misses
    except MPI.Exception as error:
        world.Revoke()
        world = world.Shrink()
        world.Set_errhandler(MPI.ERRORS_RETURN)
        losses.pop(0)
        rounds = 0
open(f'sum{rank}', 'w').write(str(total[0]))
"""
# MPI_Finalize may hang after a shrink; who leaves without it is lost to those that are still in their last round.
LEAVE = """\
import pathlib
while len(list(pathlib.Path().glob('sum*'))) < world.size:
    time.sleep(0.01)
os._exit(0)
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
    launch.script(GO_ON + LEAVE)
    done = launch.run("-np", str(ranks), "--elastic", "python", "rank.py", f"{victim}=be_killed")
    assert done.code == 0, done.stderr
    assert _went_on(launch, *(rank for rank in range(ranks) if rank != victim))
    on = f"{ranks - 1} ranks continue" if ranks > 2 else "1 rank continues"
    lost = f"rank {victim} ({_host()})"
    assert f"tfdistrun: {lost} was killed by signal 9 (SIGKILL); {on} (--min-np 1)\n" in done.stderr
    assert f"tfdistrun: succeeded on {ranks - 1} of {ranks} ranks; lost: {lost}: killed by signal 9" in done.stderr
    assert "[mpirun]" not in done.stderr


def test_job_without_a_loss_says_nothing(launch: Any) -> None:
    launch.script(GO_ON + "print('elastic', os.environ['TFDIST_ELASTIC'])\nsys.stdout.flush()\n" + LEAVE)
    done = launch.run("-np", "2", "--elastic", "python", "rank.py")
    assert (done.code, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == ["[0] elastic 1", "[1] elastic 1"]


def test_one_after_another(launch: Any) -> None:
    launch.script(GO_ON + LEAVE)
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
    launch.script(GO_ON + LEAVE)
    done = launch.run("-np", "3", "--elastic", "python", "rank.py", "2=say_much")
    assert done.code == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("[2]")] == [
        f"[2] line {number}" for number in range(20000)
    ]


def test_too_few_are_left(launch: Any) -> None:
    launch.script(GO_ON + LEAVE)
    done = launch.run("-np", "3", "--min-np", "2", "python", "rank.py", "0=be_killed", "2=exit_with_a_code")
    assert done.code == 3
    assert (
        f"tfdistrun: rank 2 on {_host()} failed: exit code 3; the job could not continue without it, since only 1 rank "
        f"was left (--min-np 2)\nrank 0 ({_host()}): killed by signal 9 (SIGKILL), 2 ranks continued\n"
    ) in done.stderr


def test_ranks_that_do_not_go_on_end_the_job(launch: Any) -> None:
    """A script that knows nothing of it: the loss is an error on each rank."""
    launch.script(
        "from mpi4py import MPI\nfrom tfdist.protocol import member\nworld = MPI.COMM_WORLD\n"
        "world.Set_errhandler(MPI.ERRORS_RETURN)\nworld.Barrier()\nmember.report(member.JOINED)\n"
        "world.Barrier()\nif rank == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
        "try:\n    while True: world.Barrier()\nexcept MPI.Exception: os._exit(5)\n"
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
    """Nothing wakes the others, which wait for it in MPI_Init."""
    launch.script(
        f"while rank == {victim} and len(os.listdir('up')) < 2: time.sleep(0.01)\n"
        f"if rank == {victim}: sys.exit(7)\nopen(f'up/{{rank}}', 'w').close()\n"
        "from mpi4py import MPI\nfrom tfdist.protocol import member\n"
        "member.report(member.JOINED)\nMPI.COMM_WORLD.Barrier()\n"
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


def test_failure_before_all_have_started(launch: Any) -> None:
    launch.script("sys.exit(4 if rank == 0 else time.sleep(1000))")
    slow = launch.folder / "slow"
    slow.write_text('#!/bin/sh\n[ "$RANK" != 2 ] || exec sleep 1000\nexec "$@"\n')
    slow.chmod(0o755)
    done = launch.run("-np", "3", "--elastic", "--mpi-args", str(slow), "python", "rank.py")
    assert done.code == 4
    assert "since it had not joined the others" in done.stderr


def test_supervisor_killed_ends_the_job(launch: Any, wait_until: Any) -> None:
    """Nothing tells it from a host that was lost."""
    launch.script(STAY)
    job = launch.start("-np", "2", "--elastic", "python", "rank.py")
    wait_until(lambda: len(launch.files("up*")) == 2, what="all ranks")
    supervisors = [pid for pid, words in launch.processes().items() if words.split()[3:4] == [_task(words)]]
    os.kill(supervisors[0], signal.SIGKILL)
    done = launch.end(job)
    assert done.code == 1
    assert "failed first: vanished without a record" in done.stderr


def _task(words: str) -> str:
    return next((word for word in words.split() if word.endswith("supervisor/task.py")), "")


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


def test_ranks_on_several_hosts(launch: Any, agent: Any) -> None:
    launch.script(GO_ON + LEAVE)
    done = launch.end(
        agent.start(launch, "-np", "4", "-H", "nodea:2,nodeb:2", "--elastic", "python", "rank.py", "2=be_killed")
    )
    assert done.code == 0, done.stderr
    assert _went_on(launch, 0, 1, 3)
    assert "rank 2 (nodeb) was killed by signal 9 (SIGKILL); 3 ranks continue" in done.stderr


def test_mpi_without_ulfm(launch: Any, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name, said in (("mpirun", ""), ("ompi_info", "Open MPI: 4.1.4")):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\necho '{said}'\n")
        (tmp_path / "bin" / name).chmod(0o755)
    launch.script("")
    done = launch.run("-np", "2", "--elastic", "python", "rank.py", variables={"TFDIST_MPI_HOME": str(tmp_path)})
    assert done.code == 2
    assert "--elastic needs an Open MPI with ULFM" in done.stderr
    assert 'it is Open MPI 4.1.4, whose ompi_info shows no "FT MPI support"' in done.stderr
