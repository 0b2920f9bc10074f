"""Elastic jobs whose hosts come, go and come back, or of which too few are left. They are played by `machine`."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from machine import BOUND_S, COUNTED, COUNTS, FIRST, HOST_TIMEOUT_S, SECOND, Machines

pytestmark = pytest.mark.starter("direct")

# A rank of an elastic job without TensorFlow, so that a start takes no time. It counts until `end` is there, and writes
# down when and where it begins or goes on with others, where from, and when it leaves.
LEAN = """\
import pathlib
import tfdist
from tfdist import errors
from tfdist.native import library
from tfdist.protocol import member
from tfdist.world import runtime

def note(what):
    with open('course', 'a') as course:
        print(what, rank, runtime.size(), os.uname().nodename, step, time.monotonic(), file=course)

def any_rank(says):
    return any(flag for [flag] in library.gather('flag', [int(says)]))

def meet():
    while True:
        runtime.renew()
        try:
            return max(number for [number] in library.gather('step', [step]))
        except errors.PeerLostError:
            pass

tfdist.init()
kept = member.commits() / 'step'
step = int(kept.read_text()) if kept.exists() else 0
if member.is_newcomer():
    step = meet()
    note('begins')
else:
    member.report(member.OPEN)
first = -1 if member.is_newcomer() else step
ends = False
while not ends:
    step += 1
    if step == first + 3:  # by then the launcher knows that all have joined
        note('begins')
    (member.commits() / f'new{rank}').write_text(str(step))
    (member.commits() / f'new{rank}').replace(kept)
    member.report(member.COMMITTED)
    try:
        meets = any_rank(runtime.meets())
        ends = any_rank(os.path.exists('end'))
    except errors.PeerLostError:
        meets = True
    if runtime.retires():
        member.report(member.RETIRED)
        note('leaves')
        sys.exit(member.LEFT_STATUS)
    if meets:
        step = meet()
        note('goes-on')
    time.sleep(0.05)
"""


@dataclass(frozen=True)
class Note:
    """What a rank has written down."""

    what: str
    rank: int
    size: int
    host: str
    step: int
    at: float


def _course(launch: Any) -> list[Note]:
    text = (launch.folder / "course").read_text() if (launch.folder / "course").exists() else ""
    words = [line.split() for line in text.splitlines()]
    return [Note(what, int(rank), int(size), host, int(step), float(at)) for what, rank, size, host, step, at in words]


def _begun(launch: Any) -> list[int]:
    """The numbers of ranks until now, which all of them have noted."""
    sizes = [note.size for note in _course(launch) if note.what != "leaves"]
    found = []
    while sizes and len(sizes) >= sizes[0]:
        found.append(sizes[0])
        del sizes[: sizes[0]]
    return found


def _wait_for(launch: Any, wait_until: Any, sizes: list[int]) -> None:
    """Until there were these numbers of ranks; ten seconds at most are a cooldown."""
    wait_until(lambda: _begun(launch) == sizes, seconds=10 + BOUND_S, what=f"{sizes} ranks")


def _list(hosts: Path, text: str) -> None:
    """All at once, so that who looks in between finds some."""
    new = hosts.with_name("hosts.new")
    new.write_text(text)
    new.replace(hosts)


def _cpu_s(pid: int) -> float:
    """What a process has used; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.slice("hosts")
def test_a_host_that_flaps_is_left_out_for_longer_each_time(machines: Machines, launch: Any, wait_until: Any) -> None:
    """Cut off and back, it is used again after 3 s; killed and back, after 6 s."""
    launch.script(LEAN)
    job = machines.start(launch, "--elastic", "--blacklist-cooldown-range", "3", "60")
    _wait_for(launch, wait_until, [2])
    for cooldown_s, before in ((3, [2]), (6, [2, 1, 2])):
        lost = time.monotonic()
        if cooldown_s == 3:
            machines.unplug(SECOND)
        else:
            machines.signal(SECOND, signal.SIGKILL)
        _wait_for(launch, wait_until, [*before, 1])
        machines.plug(SECOND)
        _wait_for(launch, wait_until, [*before, 1, 2])
        met = [note for note in _course(launch) if note.what == "goes-on" and note.size == 2][-1]
        assert cooldown_s <= met.at - lost < cooldown_s + BOUND_S
    (launch.folder / "end").touch()
    done = launch.end(job)
    assert done.code == 0, done.stderr
    for rank in (1, 2):
        assert done.stderr.count(f"rank {rank} ({SECOND}) was lost: it ") == 1
    assert done.stderr.count("; 1 rank continues") == 2
    assert "restarting with" not in done.stderr
    assert f"was lost: it has not answered for {HOST_TIMEOUT_S} s" in done.stderr
    joins = f"there are slots for 2 ranks: starting 1 rank on {SECOND}:1, to join the others at a commit"
    assert done.stderr.count(joins) == 2
    steps = [note.step for note in _course(launch) if note.host == "node-2"]
    assert steps == sorted(steps), "what was committed is not done again"
    machines.wait_for_end(wait_until, FIRST, SECOND)
    assert machines.memory(FIRST) == machines.memory(SECOND) == []


@pytest.mark.slice("hosts")
def test_commits_of_a_rank_that_ends_before_the_others(machines: Machines, launch: Any, wait_until: Any) -> None:
    """Its supervisor is let go at once, and does not know whether they will be needed."""
    ends = (
        "    if rank == 1 and step == 3:\n        with open('parent.new', 'w') as file:\n"
        "            file.write(str(os.getppid()))\n"
        "        os.rename('parent.new', 'parent')\n        os.kill(os.getpid(), 9)\n"
    )
    launch.script(LEAN + ends)
    job = machines.start(launch, "--elastic", "--blacklist-cooldown-range", "600", "600")
    wait_until(lambda: launch.files("parent"), seconds=BOUND_S, what="the end of rank 1")
    supervisor = (launch.folder / "parent").read_text()
    wait_until(lambda: not Path("/proc", supervisor).exists(), seconds=BOUND_S, what="the end of its supervisor")
    assert machines.commits(SECOND), "one may go on from there"
    (launch.folder / "end").touch()
    done = launch.end(job)
    assert done.code == 0, done.stderr
    machines.wait_for_end(wait_until, FIRST, SECOND)
    assert machines.memory(FIRST) == machines.memory(SECOND) == []


@pytest.mark.slice("hosts")
def test_too_few_hosts_are_waited_for_and_then_the_job_fails(machines: Machines, launch: Any, wait_until: Any) -> None:
    launch.script(LEAN)
    cooldown = ("--blacklist-cooldown-range", "600", "600")
    job = machines.start(launch, "--min-np", "2", "--elastic-timeout", "5", *cooldown)
    _wait_for(launch, wait_until, [2])
    lost = time.monotonic()
    machines.signal(SECOND, signal.SIGKILL)
    machines.wait_for_end(wait_until, FIRST)
    used = [_cpu_s(job.pid)]
    wait_until(lambda: job.poll() is not None or used.append(_cpu_s(job.pid)), seconds=BOUND_S, what="the end")
    assert used[-1] - used[0] < 1, "it spins"
    assert 5 <= time.monotonic() - lost < 5 + BOUND_S
    done = launch.end(job)
    assert done.code == 1, done.stderr
    short = "the remaining hosts have slots for 1 rank, but --min-np is 2"
    assert f"tfdistrun: host {SECOND} with rank 1 was lost: it " in done.stderr
    assert f"; {short}; waiting up to 5 s for hosts\n" in done.stderr
    assert done.stderr.endswith(f"{short}; no host joined within 5 s (--elastic-timeout)\n")
    assert machines.memory(FIRST) == []


@pytest.mark.slice("hosts")
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_wait_for_hosts_is_interrupted(machines: Machines, launch: Any, wait_until: Any, signum: int) -> None:
    launch.script(LEAN)
    job = machines.start(launch, "--min-np", "2", "--blacklist-cooldown-range", "600", "600")
    _wait_for(launch, wait_until, [2])
    machines.signal(SECOND, signal.SIGKILL)
    wait_until(lambda: "; waiting up to " in launch.said(job), seconds=BOUND_S, what="the wait for hosts")
    job.send_signal(signum)
    done = launch.end(job)
    assert done.code == 128 + signum, done.stderr
    assert done.seconds < BOUND_S
    assert f"interrupted by {signal.Signals(signum).name} while no rank was running" in done.stderr
    assert machines.memory(FIRST) == []


@pytest.mark.slice("hosts")
def test_a_host_is_taken_off_the_list_and_the_script_fails(machines: Machines, launch: Any, wait_until: Any) -> None:
    """Its ranks leave the others, and what was committed there does not stay. Junk and silence change nothing."""
    launch.script(LEAN)
    hosts = launch.folder / "hosts"
    _list(hosts, f"{FIRST}\n{SECOND}\n")
    finder = launch.folder / "find.sh"
    finder.write_text(f"#!/bin/sh\necho >>{launch.folder}/looked\ncat {hosts} || exit 3\n")
    finder.chmod(0o755)
    job = machines.start(launch, "--elastic", script=str(finder))
    _wait_for(launch, wait_until, [2])
    for harm in (lambda: _list(hosts, "a b c:d"), lambda: _list(hosts, "\n"), hosts.unlink):
        harm()
        (launch.folder / "looked").write_text("")
        wait_until(lambda: len((launch.folder / "looked").read_text()) > 2, what="three looks")
    _list(hosts, f"{FIRST}\n")
    _wait_for(launch, wait_until, [2, 1])
    assert [note.what for note in _course(launch) if note.host == "node-3"] == ["begins", "leaves"]
    (launch.folder / "end").touch()
    done = launch.end(job)
    assert done.code == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if line.endswith(", the host list stays unchanged")]
    expected = (
        "'a b c' is not a host name",
        r"no host: stdout '\n', stderr ''; ignored while",
        "it exited with status 3",
    )
    assert [text in line for text, line in zip(expected, told, strict=True)] == [True] * 3, told
    assert f"{SECOND} has fewer slots or none: 1 rank on {SECOND}:1 leaves at its next commit" in done.stderr
    machines.wait_for_end(wait_until, FIRST, SECOND)
    assert machines.memory(FIRST) == machines.memory(SECOND) == []


@pytest.mark.slice("hosts")
def test_a_host_that_stays_away(launch: Any, agent: Any, wait_until: Any) -> None:
    """It is tried again after 1 s, in vain, then after 2 s, and the ranks go on meanwhile."""
    launch.script(LEAN)
    words = ("-np", "2", "-H", "nodea:1,lost:1", "--elastic", "--start-timeout", "5")
    job = agent.start(launch, *words, "--blacklist-cooldown-range", "1", "60", "python", "rank.py")
    failed = "no agent could be started on lost: ssh: connect to host lost port 22: No route"
    wait_until(lambda: launch.said(job).count(failed) >= 3, seconds=20 + BOUND_S, what="three attempts")
    (launch.folder / "end").touch()
    done = launch.end(job)
    assert done.code == 0, done.stderr
    assert done.stderr.count("; restarting with 1 rank on nodea:1\n") == 1
    assert [note.what for note in _course(launch)] == ["begins"]


@pytest.mark.slice("hosts")
def test_a_host_on_which_nothing_works_is_found(machines: Machines, launch: Any, wait_until: Any) -> None:
    """It lacks the program, say. The ranks go on without it, and do not try again."""
    launch.script("if os.uname().nodename == 'node-3': sys.exit(5)\n" + LEAN)
    hosts = launch.folder / "hosts"
    _list(hosts, f"{FIRST}\n")
    job = machines.start(launch, "--elastic", ranks=1, script=f"cat {hosts}")
    _wait_for(launch, wait_until, [1])
    _list(hosts, f"{FIRST}\n{SECOND}\n")
    told = f"rank 1 ({SECOND}) does not join the others, which continue: exit code 5\n"
    wait_until(lambda: told in launch.said(job), seconds=BOUND_S, what="the end of what runs there")
    (launch.folder / "end").touch()
    done = launch.end(job)
    assert done.code == 0, done.stderr
    assert done.stderr.count(told) == 1
    assert "restarting with" not in done.stderr
    assert [note.what for note in _course(launch)] == ["begins"]
    machines.wait_for_end(wait_until, FIRST, SECOND)
    assert machines.memory(FIRST) == []


@pytest.mark.slice("hosts")
def test_told_to_end_while_it_ends_by_itself(launch: Any, wait_until: Any) -> None:
    """A failure is about to be followed by a new start of all ranks; nobody wants that any more."""
    ends = "def stay(*_):\n    open('told', 'w').close()\nsignal.signal(signal.SIGTERM, stay)\n"
    fails = (
        "    if rank == 1 and os.path.exists('up0'): os.kill(os.getpid(), signal.SIGKILL)\n    open(f'up{rank}', 'w')\n"
    )
    head, loop = LEAN.split("    step += 1\n")
    launch.script(f"{ends}{head}    step += 1\n{loop}{fails}")
    job = launch.start("-np", "2", "--min-np", "2", "python", "rank.py")
    wait_until(lambda: launch.files("told"), what="the end of the other")
    job.send_signal(signal.SIGTERM)
    done = launch.end(job)
    # The one that was told has 20 s, as its pause is.
    assert done.seconds < 20 + BOUND_S
    assert done.code in (137, 143), "the second where it came so late that the next start had begun"
    if done.code == 137 and "restarting with" not in done.stderr:
        assert done.stderr.endswith("\nnot restarting the ranks: the job was asked to stop\n")


# Alone, rank 0 finds another host at step 20, and waits until it is to meet it. With two, rank 1 waits in step 30.
FINDS = f"""\
        if state.step == 20 and tfdist.size() == 1:
            open('hosts', 'a').write('{SECOND}')
            while not runtime.meets(): time.sleep(0.05)
        if state.step == 30 and tfdist.size() == 2:
            open(f'up{{rank}}', 'w').close()
            while rank == 1: time.sleep(0.05)
"""


@pytest.mark.slice("hosts")
def test_a_host_is_found_and_then_cut_off(machines: Machines, launch: Any, wait_until: Any) -> None:
    """Each time ranks go on from the last commit, which the new host gets from the other."""
    launch.script("from tfdist.world import runtime\n" + COUNTS + FINDS + COUNTED)
    (launch.folder / "hosts").write_text(f"{FIRST}\n")
    job = machines.start(launch, "--elastic", "--max-np", "2", ranks=1, script="cat hosts")
    wait_until(lambda: len(launch.files("up*")) == 2, seconds=90, what="both ranks")
    ranks = [pid for pid in machines.processes(FIRST) if launch.processes().get(pid, "").endswith("rank.py ")]
    machines.unplug(SECOND)
    begin, used = time.monotonic(), sum(map(_cpu_s, ranks))
    wait_until(lambda: "; 1 rank continues" in launch.said(job), seconds=BOUND_S, what="the loss of the host")
    assert sum(map(_cpu_s, ranks)) - used < (time.monotonic() - begin) / 2, "who waits for a lost rank spins"
    done = launch.end(job)
    assert done.code == 0, done.stderr
    counts = sorted(line for line in done.stdout.splitlines() if "counts from" in line)
    assert counts == [
        "[0] counts from 0 with 1",
        "[0] counts from 21 with 2",
        "[0] counts from 30 with 1",
        "[1] counts from 21 with 2",
    ]
    assert f"rank 1 ({SECOND}) has joined; 2 ranks continue\n" in done.stderr
    assert "restarting with" not in done.stderr
    assert f"rank 1 ({SECOND}) was lost: it has not answered for {HOST_TIMEOUT_S} s" in done.stderr
    machines.wait_for_end(wait_until, FIRST, SECOND)
    assert machines.memory(FIRST) == machines.commits(SECOND) == []


@pytest.mark.slice("hosts")
def test_the_launcher_is_killed(machines: Machines, launch: Any, wait_until: Any) -> None:
    """Nothing of an elastic job is left anywhere."""
    launch.script(LEAN)
    job = machines.start(launch, "--elastic")
    _wait_for(launch, wait_until, [2])
    assert machines.memory(FIRST) != [] != machines.memory(SECOND)
    job.kill()
    machines.wait_for_end(wait_until, FIRST, SECOND)
    wait_until(lambda: not launch.processes().keys() - {each.pid for each in machines.servers.values()})
    assert machines.memory(FIRST) == machines.memory(SECOND) == []
