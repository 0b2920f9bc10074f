"""Jobs over two hosts of which one is cut off, frozen or killed, or the launcher's own: all end in time, and say why.

The three are network namespaces on one bridge, each with a host name of its own, so links can be cut for real.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

# In the place of ssh and of sshd: what runs on a host is no descendant of the launcher, which would end it by itself.
AGENT = """\
#!/bin/sh
while [ "${1#-}" != "$1" ]; do case $1 in -o|-p|-i) shift ;; esac; shift; done
host=$1; shift
echo "$*" >"$(dirname "$0")/$host"
"""
SERVER = """\
hostname "node-${1##*.}"
exec 3<>"$1"
while read -r command <&3; do sh -c "$command" 3>&- </dev/null >/dev/null 2>&1 & done
"""
LINK = "tfdist0"
LAUNCHER, FIRST, SECOND = "10.77.0.1", "10.77.0.2", "10.77.0.3"
HOST_TIMEOUT_S = 4
# What is promised: the host's silence, then at most 8 s for the others, and here the slowness of two cores.
BOUND_S = HOST_TIMEOUT_S + 8 + 10
STAYS = "open(f'up{rank}', 'w').close()\nwhile True: time.sleep(0.05)\n"


def _run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
    return done.stdout


@dataclass(frozen=True)
class Machines:
    """The launcher's and two hosts, by their addresses."""

    prefix: str
    agent: Path
    servers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def namespace(self, address: str) -> str:
        return f"{self.prefix}-{address}"

    def cut(self, address: str) -> None:
        """Takes the host's network away, as `docker network disconnect` does."""
        _run("ip", "-n", self.namespace(address), "link", "delete", LINK)

    def unplug(self, address: str) -> None:
        """What the host sends goes nowhere from now on, and nothing comes; it does not notice."""
        _run("ip", "-n", self.namespace(LAUNCHER), "link", "set", f"to-{address}", "nomaster")

    def signal(self, address: str, signum: int) -> None:
        """To every process of the host, as `docker kill` and `docker pause` do."""
        for pid in self.processes(address):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)

    def processes(self, address: str) -> list[int]:
        """All but the server."""
        found = map(int, _run("ip", "netns", "pids", self.namespace(address)).split())
        return [pid for pid in found if address not in self.servers or pid != self.servers[address].pid]

    def serve(self, address: str, environment: Mapping[str, str]) -> None:
        os.mkfifo(self.agent.parent / address)
        self.servers[address] = subprocess.Popen(
            ["ip", "netns", "exec", self.namespace(address), "unshare", "--uts", "sh", "-c", SERVER, "sh", address],
            cwd=self.agent.parent,
            env=environment,
        )

    def start(self, launch: Any, *words: str, ranks: int = 2, slots: int = 1) -> Any:
        return launch.start(
            *("-np", str(ranks), "-H", f"{FIRST}:{slots},{SECOND}:{slots}", "--network-interfaces", LINK),
            *("--mpi-args", f"--prtemca plm_ssh_agent {self.agent}", "--host-timeout", str(HOST_TIMEOUT_S)),
            *(*words, "python", "rank.py"),
            inside=("ip", "netns", "exec", self.namespace(LAUNCHER)),
        )


@pytest.fixture
def machines(tmp_path: Path, launch: Any) -> Iterator[Machines]:
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None:
        pytest.skip("needs root, ip and unshare to play other machines")
    agent = tmp_path / "agent.sh"
    agent.write_text(AGENT)
    agent.chmod(0o755)
    made = Machines(f"tfdist{os.getpid()}", agent)
    home = made.namespace(LAUNCHER)
    if subprocess.run(["ip", "netns", "add", home], capture_output=True).returncode != 0:
        pytest.skip("no network namespace can be made here")
    try:
        # With an address of its own: else it would take another one when a link is cut, and nobody would reach it.
        _run(*f"ip -n {home} link add {LINK} address 02:00:00:00:00:01 type bridge".split())
        for address in (FIRST, SECOND):
            other = made.namespace(address)
            _run("ip", "netns", "add", other)
            _run(*f"ip -n {home} link add to-{address} type veth peer name {LINK} netns {other}".split())
            _run(*f"ip -n {home} link set to-{address} master {LINK} up".split())
        for address in (LAUNCHER, FIRST, SECOND):
            _run(*f"ip -n {made.namespace(address)} address add {address}/24 dev {LINK}".split())
            _run(*f"ip -n {made.namespace(address)} link set {LINK} up".split())
            _run(*f"ip -n {made.namespace(address)} link set lo up".split())
        for address in (FIRST, SECOND):
            made.serve(address, launch.environment())
        yield made
    finally:
        for server in made.servers.values():
            server.kill()
            server.wait()
        for address in (FIRST, SECOND, LAUNCHER):
            subprocess.run(["ip", "netns", "delete", made.namespace(address)], capture_output=True)


@pytest.fixture
def running(machines: Machines, launch: Any, wait_until: Callable[..., None]) -> Any:
    """A job of two ranks that run."""
    launch.script(STAYS)
    job = machines.start(launch)
    wait_until(lambda: len(launch.files("up*")) == 2, what="the ranks")
    return job


def _nothing_runs(machines: Machines, wait_until: Callable[..., None], *addresses: str) -> None:
    for address in addresses:
        wait_until(lambda at=address: not machines.processes(at), seconds=BOUND_S, what=f"the end of all on {address}")


@pytest.mark.parametrize("how", ["cut", "unplug"])
def test_host_without_network(machines: Machines, launch: Any, running: Any, wait_until: Any, how: str) -> None:
    getattr(machines, how)(SECOND)
    done = launch.end(running)
    assert done.code == 1, done.stderr
    assert done.seconds < BOUND_S
    assert (
        f"host {SECOND} with rank 1 was lost: it has not answered for {HOST_TIMEOUT_S} s (TFDIST_HOST_TIMEOUT)\n"
        "  rank  host       outcome\n"
        f"  0     {FIRST}  ended by tfdistrun after host {SECOND} was lost\n"
        f"  1     {SECOND}  lost with its host\n"
        f"next: check whether host {SECOND} is up and on the network"
    ) in done.stderr
    _nothing_runs(machines, wait_until, FIRST, SECOND)


def test_frozen_host_ends_its_ranks_when_it_goes_on(
    machines: Machines, launch: Any, running: Any, wait_until: Any
) -> None:
    machines.signal(SECOND, signal.SIGSTOP)
    done = launch.end(running)
    assert done.code == 1, done.stderr
    assert done.seconds < BOUND_S
    assert f"host {SECOND} with rank 1 was lost: it has not answered for {HOST_TIMEOUT_S} s" in done.stderr
    _nothing_runs(machines, wait_until, FIRST)
    assert machines.processes(SECOND)
    machines.signal(SECOND, signal.SIGCONT)
    _nothing_runs(machines, wait_until, SECOND)


def test_killed_host(machines: Machines, launch: Any, running: Any, wait_until: Any) -> None:
    machines.signal(SECOND, signal.SIGKILL)
    done = launch.end(running)
    assert done.code == 1, done.stderr
    assert done.seconds < BOUND_S
    assert f"host {SECOND} with rank 1 was lost: it closed its connection without a record\n" in done.stderr
    assert f"{FIRST}  ended by tfdistrun after host {SECOND} was lost\n" in done.stderr
    assert "[mpirun]" not in done.stderr, "the summary says it all"
    _nothing_runs(machines, wait_until, FIRST, SECOND)


@pytest.mark.parametrize("how", ["cut", "unplug"])
def test_launcher_without_network(machines: Machines, launch: Any, running: Any, wait_until: Any, how: str) -> None:
    for address in (FIRST, SECOND) if how == "unplug" else (LAUNCHER,):
        getattr(machines, how)(address)
    done = launch.end(running)
    assert done.code == 1, done.stderr
    assert done.seconds < BOUND_S
    for rank, address in enumerate((FIRST, SECOND)):
        assert f"host {address} with rank {rank} was lost: it has not answered for {HOST_TIMEOUT_S} s" in done.stderr
    assert "next: all other hosts were lost together: check the network of this machine" in done.stderr
    _nothing_runs(machines, wait_until, FIRST, SECOND)


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
    _nothing_runs(machines, wait_until, FIRST, SECOND)


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
    assert f"{SECOND}  did not answer any more after rank 0 failed" in done.stderr
    machines.signal(SECOND, signal.SIGCONT)
    _nothing_runs(machines, wait_until, FIRST, SECOND)


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
