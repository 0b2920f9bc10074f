"""Jobs in which a rank fails: all of it ends in time, and the summary and the exit status name the first to fail."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

WAIT = "time.sleep(1000)"
# The bound that is promised, from the failure to the end of everything.
BOUND_S = 10.0


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_exit_code_of_the_first_to_fail(launch: Any, ranks: int) -> None:
    last = ranks - 1
    launch.script(
        f"if rank == {last}:\n    open('failed', 'w').close()\n    sys.exit(40 + rank)\n"
        "while not os.path.exists('failed'): time.sleep(0.01)\n"
        "time.sleep(0.3)\nsys.exit(3)"
    )
    done = launch.run("-np", str(ranks), "python", "rank.py")
    assert done.code == 40 + last
    assert f"tfdistrun: rank {last} on " in done.stderr
    assert f"exit code {40 + last}" in done.stderr


def test_exception_ends_a_blocked_peer_and_is_shown(launch: Any) -> None:
    launch.script(
        f"if rank == 0:\n    open('up', 'w').close()\n    {WAIT}\n"
        "while not os.path.exists('up'): time.sleep(0.01)\nraise KeyError('no such ' + 'thing')"
    )
    done = launch.run("-np", "2", "python", "rank.py")
    assert done.code == 1
    assert done.seconds < BOUND_S
    summary = done.stderr[done.stderr.index("tfdistrun: rank 1") :]
    assert "  | Traceback (most recent call last):" in summary
    assert "  | KeyError: 'no such thing'" in summary
    assert "terminated by tfdistrun after rank 1 failed" in summary, done.stderr
    assert "next: rank 1 on " in summary


def test_failure_before_a_peer_has_started(launch: Any) -> None:
    launch.script(f"if rank == 0: {WAIT}\nsys.exit(7)")
    done = launch.run("-np", "4", "python", "rank.py")
    assert done.code == 7
    assert done.seconds < BOUND_S
    assert "vanished" not in done.stderr


@pytest.mark.starter("mpi")
def test_sigkill_in_an_allreduce(launch: Any) -> None:
    launch.script(
        "from mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\n"
        "if rank == 1: os.kill(os.getpid(), signal.SIGKILL)\nMPI.COMM_WORLD.allreduce(rank)"
    )
    done = launch.run("-np", "3", "python", "rank.py")
    assert done.code == 137
    assert done.seconds < BOUND_S
    assert "killed by SIGKILL" in done.stderr
    assert "dmesg" in done.stderr
    assert "mpirun" not in done.stderr


@pytest.mark.starter("mpi")
def test_mpi_abort(launch: Any) -> None:
    launch.script(
        "from mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\n"
        "if rank == 1: MPI.COMM_WORLD.Abort(5)\nMPI.COMM_WORLD.allreduce(rank)"
    )
    done = launch.run("-np", "2", "python", "rank.py")
    assert done.code == 5
    assert done.seconds < BOUND_S


@pytest.mark.parametrize(
    "stubborn",
    [
        pytest.param("signal.signal(signal.SIGTERM, signal.SIG_IGN)", marks=pytest.mark.slice("launch")),
        "os.kill(os.getpid(), signal.SIGSTOP)",
    ],
)
def test_peer_that_ignores_sigterm_or_is_stopped(launch: Any, stubborn: str) -> None:
    launch.script(
        f"if rank == 0:\n    open('up', 'w').close()\n    {stubborn}\n    {WAIT}\n"
        "while not os.path.exists('up'): time.sleep(0.01)\nsys.exit(4)"
    )
    done = launch.run("-np", "2", "python", "rank.py")
    assert done.code == 4
    assert done.seconds < BOUND_S
    assert "terminated by tfdistrun after rank 1 failed (by SIGKILL)" in done.stderr


def test_peer_may_report_its_own_error(launch: Any) -> None:
    launch.script(
        "if rank == 0:\n    while not os.path.exists('up'): time.sleep(0.01)\n"
        "    open('failed', 'w').close()\n    sys.exit(9)\n"
        "open('up', 'w').close()\n"
        "while not os.path.exists('failed'): time.sleep(0.01)\n"
        "time.sleep(0.5)\nprint('lost my peer')\nsys.exit(8)"
    )
    done = launch.run("-np", "2", "python", "rank.py")
    assert "[1] lost my peer\n" in done.stdout
    assert "exit code 8" in done.stderr
    assert done.code == 9


@pytest.mark.parametrize("victim", ["prterun", "task.py", "guard.py"])
def test_part_of_ours_killed(launch: Any, wait_until: Any, victim: str, starter: str) -> None:
    """Without MPI, what has forked the supervisors is in the place of mpirun, and comes before them."""
    if starter == "direct" and victim == "prterun":
        victim = "task.py"
    launch.script(f"open(f'up{{rank}}', 'w').close()\n{WAIT}")
    job = launch.start("-np", "2", "python", "rank.py")
    wait_until(lambda: len(launch.files("up*")) == 2)
    # The command lines of guard and mpirun name the programs that they start, too.
    found = {pid: words.split() for pid, words in launch.processes().items()}
    pid = min(pid for pid, words in found.items() if any(word.endswith(victim) for word in words[:4]))
    os.kill(pid, signal.SIGKILL)
    done = launch.end(job)
    assert done.code != 0
    assert done.seconds < BOUND_S
    assert "next: " in done.stderr


def test_program_that_cannot_be_started(launch: Any) -> None:
    (launch.folder / "broken").write_text("echo a\n")
    (launch.folder / "broken").chmod(0o755)
    done = launch.run("-np", "2", "./broken")
    assert done.code == 126
    assert "broken cannot be started on " in done.stderr
    assert (
        "it is not a program and its first line names no interpreter; add a first line such as #!/bin/sh" in done.stderr
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-np", "2", "python", "no.py"], "no.py: no such file; cwd is "),
        (["-np", "2", "no-such-command"], "no-such-command: no such command on PATH"),
        (["-np", "0", "python", "-V"], "'0' is not a number of ranks"),
        (["-np", "-1", "python", "-V"], "'-1' is not a number of ranks"),
        (["-np", "two", "python", "-V"], "'two' is not a number of ranks"),
        (["python", "-V"], "-np N is missing"),
        (["-np", "2"], "no command to run"),
        (["-np"], "-np expects a value"),
        (["-np", "2", "--verbos", "python", "-V"], "--verbos: no such option; did you mean --verbose?"),
        (
            ["-np", "2", "-H", "no-such-host.invalid:2", "python", "-V"],
            "host 'no-such-host.invalid' cannot be resolved",
        ),
        (["-np", "3", "-H", "localhost:2", "python", "-V"], "-np 3 exceeds the 2 slots of localhost:2"),
        (
            ["-np", "2", "--network-interfaces", "lo,zz9", "true"],
            "--network-interfaces: zz9 has no IPv4 address on this",
        ),
        (["-np", "1", "--compression", "zip", "python", "-V"], "--compression: invalid choice: 'zip'"),
        (
            ["-np", "1", "--network-interfaces", "zz9", "-H", "localhost", "--hostfile", "x", "true"],
            "cannot be combined",
        ),
    ],
)
def test_error_before_anything_starts(launch: Any, words: list[str], message: str) -> None:
    done = launch.run(*words)
    assert done.code == 2
    assert message in done.stderr
    assert done.stdout == ""
