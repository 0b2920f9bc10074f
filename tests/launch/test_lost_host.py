"""Jobs over two hosts of which one is cut off, frozen or killed, or the launcher's own: all end in time, and say why.

They are played by `machine`.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from machine import BOUND_S, COUNTED, COUNTS, FIRST, HOST_TIMEOUT_S, LAUNCHER, SECOND, Machines

pytestmark = pytest.mark.starter("mpi")

STAYS = "open(f'up{rank}', 'w').close()\nwhile True: time.sleep(0.05)\n"


@pytest.fixture
def running(machines: Machines, launch: Any, wait_until: Any) -> Any:
    """A job of two ranks that run."""
    launch.script(STAYS)
    job = machines.start(launch)
    wait_until(lambda: len(launch.files("up*")) == 2, what="the ranks")
    return job


@pytest.mark.parametrize("how", ["cut", pytest.param("unplug", marks=pytest.mark.slice("hosts"))])
def test_host_without_network(machines: Machines, launch: Any, running: Any, wait_until: Any, how: str) -> None:
    getattr(machines, how)(SECOND)
    done = launch.end(running)
    assert done.code == 1, done.stderr
    assert done.seconds < BOUND_S
    assert (
        f"host {SECOND} with rank 1 was lost: it has not answered for {HOST_TIMEOUT_S} s (TFDIST_HOST_TIMEOUT)\n"
        "  rank  host       outcome\n"
        f"  0     {FIRST}  terminated by tfdistrun after host {SECOND} was lost\n"
        f"  1     {SECOND}  lost with its host\n"
        f"next: check that host {SECOND} is up and on the network"
    ) in done.stderr
    machines.wait_for_end(wait_until, FIRST, SECOND)


@pytest.mark.slice("hosts")
def test_frozen_host_ends_its_ranks_when_it_goes_on(
    machines: Machines, launch: Any, running: Any, wait_until: Any
) -> None:
    machines.signal(SECOND, signal.SIGSTOP)
    done = launch.end(running)
    assert done.code == 1, done.stderr
    assert done.seconds < BOUND_S
    assert f"host {SECOND} with rank 1 was lost: it has not answered for {HOST_TIMEOUT_S} s" in done.stderr
    machines.wait_for_end(wait_until, FIRST)
    assert machines.processes(SECOND)
    machines.signal(SECOND, signal.SIGCONT)
    machines.wait_for_end(wait_until, SECOND)


@pytest.mark.slice("hosts")
def test_killed_host(machines: Machines, launch: Any, running: Any, wait_until: Any) -> None:
    machines.signal(SECOND, signal.SIGKILL)
    done = launch.end(running)
    assert done.code == 1, done.stderr
    assert done.seconds < BOUND_S
    assert f"host {SECOND} with rank 1 was lost: it closed its connection without a record\n" in done.stderr
    assert f"{FIRST}  terminated by tfdistrun after host {SECOND} was lost\n" in done.stderr
    assert "[mpirun]" not in done.stderr, "the summary says it all"
    machines.wait_for_end(wait_until, FIRST, SECOND)


@pytest.mark.slice("hosts")
@pytest.mark.parametrize("how", ["cut", "unplug"])
def test_launcher_without_network(machines: Machines, launch: Any, running: Any, wait_until: Any, how: str) -> None:
    for address in (FIRST, SECOND) if how == "unplug" else (LAUNCHER,):
        getattr(machines, how)(address)
    done = launch.end(running)
    assert done.code == 1, done.stderr
    assert done.seconds < BOUND_S
    for rank, address in enumerate((FIRST, SECOND)):
        assert f"host {address} with rank {rank} was lost: it has not answered for {HOST_TIMEOUT_S} s" in done.stderr
    assert "next: all other hosts were lost at the same time: check the network of this machine" in done.stderr
    machines.wait_for_end(wait_until, FIRST, SECOND)


def test_only_a_supervisor_is_killed(machines: Machines, launch: Any, wait_until: Any) -> None:
    launch.script(STAYS)
    job = machines.start(launch, ranks=4, slots=2)
    wait_until(lambda: len(launch.files("up*")) == 4, what="the ranks")
    here = machines.processes(SECOND)
    supervisors = [pid for pid, words in launch.processes().items() if pid in here and words.endswith("task.py ")]
    assert len(supervisors) == 2
    os.kill(supervisors[0], signal.SIGKILL)
    done = launch.end(job)
    assert done.code == 1, done.stderr
    assert f"on {SECOND} failed first: vanished without a record" in done.stderr
    assert "was lost" not in done.stderr.partition("next:")[0]
    machines.wait_for_end(wait_until, FIRST, SECOND)


@pytest.mark.slice("hosts")
def test_rank_fails_and_another_host_does_not_answer(machines: Machines, launch: Any, wait_until: Any) -> None:
    launch.script(
        "open(f'up{rank}', 'w').close()\nwhile rank or not os.path.exists('fail'): time.sleep(0.05)\nsys.exit(6)"
    )
    job = machines.start(launch, "--host-timeout", "60")
    wait_until(lambda: len(launch.files("up*")) == 2, what="the ranks")
    machines.signal(SECOND, signal.SIGSTOP)
    (launch.folder / "fail").touch()
    done = launch.end(job)
    assert done.code == 6, done.stderr
    assert f"rank 0 on {FIRST} failed first: exit code 6" in done.stderr
    assert f"{SECOND}  no longer answered after rank 0 failed" in done.stderr
    machines.signal(SECOND, signal.SIGCONT)
    machines.wait_for_end(wait_until, FIRST, SECOND)


@pytest.mark.slice("hosts")
def test_launcher_that_was_stopped_goes_on(machines: Machines, launch: Any, wait_until: Any) -> None:
    """By Ctrl-Z, say. The others see that its machine still answers, and it takes its own pause for no silence."""
    launch.script(
        "while not os.path.exists('go'):\n    with open(f'tick{rank}', 'a') as file: file.write('x')\n"
        "    print('line')\n    time.sleep(0.05)\n"
    )
    job = machines.start(launch, "--host-timeout", "2")
    ticks = [launch.folder / f"tick{rank}" for rank in range(2)]
    wait_until(lambda: all(file.exists() for file in ticks), what="the ranks")
    for signum, more in ((signal.SIGSTOP, 120), (signal.SIGCONT, 60)):
        before = [file.stat().st_size for file in ticks]
        machines.signal(LAUNCHER, signum)
        wait_until(
            lambda first=before, more=more: all(
                file.stat().st_size > size + more for file, size in zip(ticks, first, strict=True)
            ),
            what=f"ranks that go on for {more / 20} s after {signum.name}",
        )
    (launch.folder / "go").touch()
    done = launch.end(job)
    assert done.code == 0, done.stderr


# Both ranks wait in step 20, until one is to find that the other is lost.
WAITS = """\
        if state.step == 20 and tfdist.size() == 2:
            open(f'up{rank}', 'w').close()
            while not os.path.exists('lost'): time.sleep(0.05)
"""


@pytest.mark.slice("hosts")
@pytest.mark.starter("direct")
@pytest.mark.parametrize(("how", "lost"), [("kill", FIRST), ("kill", SECOND), ("freeze", SECOND), ("unplug", SECOND)])
def test_elastic_job_goes_on_in_place_without_the_host(
    machines: Machines, launch: Any, wait_until: Any, how: str, lost: str
) -> None:
    launch.script(COUNTS + WAITS + COUNTED)
    job = machines.start(launch, "--elastic")
    wait_until(lambda: len(launch.files("up*")) == 2, seconds=60, what="the ranks")
    if how == "unplug":
        machines.unplug(lost)
    else:
        machines.signal(lost, signal.SIGKILL if how == "kill" else signal.SIGSTOP)
    (launch.folder / "lost").touch()
    done = launch.end(job)
    assert done.code == 0, done.stderr
    rank, left = (0, SECOND) if lost == FIRST else (1, FIRST)
    assert f"rank {rank} ({lost}) was lost: it " in done.stderr
    assert (how == "kill") == ("it has not answered for" not in done.stderr)
    assert "; 1 rank continues (--min-np 1)" in done.stderr
    assert "restarting" not in done.stderr
    assert f"[{1 - rank}] counts from 20 with 1" in done.stdout
    assert machines.memory(left) == []
    if how == "freeze":
        machines.signal(lost, signal.SIGCONT)
    machines.wait_for_end(wait_until, FIRST, SECOND)
    assert len(machines.commits(lost)) == (how == "kill"), "they go with the memory of a host that is killed for good"
