"""Hosts as network namespaces on one bridge, each with a name and a memory of its own, so links can be cut for real.

The launcher's is a third one. No test of its own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
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
# The same where what is started reads from its input, and ssh stays until it ends.
SSH = """\
#!/bin/sh
while [ "${1#-}" != "$1" ]; do case $1 in -o|-p|-i) shift ;; esac; shift; done
host=$1; shift
cd "$(dirname "$0")/.."
cat >"$host.$$"
echo "$* <$PWD/$host.$$" >"$host"
exec sleep 1000
"""
SERVER = """\
hostname "node-${1##*.}"
mount -t tmpfs -o size=1g tmpfs /dev/shm
exec 3<>"$1"
: >"$1.ready"
while read -r command <&3; do sh -c "$command" 3>&- </dev/null >/dev/null 2>&1 & done
"""
# A program that counts steps, of which each is a collective and a commit; between the two stands what a test wants.
COUNTS = """\
import tfdist
tfdist.init()
state = tfdist.elastic.ObjectState(step=0)

@tfdist.elastic.run
def count(state):
    print('counts from', state.step, 'with', tfdist.size(), flush=True)
    while state.step < 40:
"""
COUNTED = """\
        tfdist.allreduce(1.0, name='step')
        state.step += 1
        state.commit()

count(state)
"""
# A launcher to which no host is this machine; the names of such hosts are in no resolver.
PROGRAM = """\
import sys
from tfdist.launch.host import host
from tfdist.launch.command import main
host.is_local = lambda name: False
host.address = lambda name: "127.0.0.1"
sys.exit(main())
"""
LINK = "tfdist0"
LAUNCHER, FIRST, SECOND = "10.77.0.1", "10.77.0.2", "10.77.0.3"
HOST_TIMEOUT_S = 4
# What is promised: the host's silence, then at most 8 s for the others, and here the slowness of two cores.
BOUND_S = HOST_TIMEOUT_S + 8 + 10


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

    def plug(self, address: str) -> None:
        """Undoes `unplug`."""
        _run("ip", "-n", self.namespace(LAUNCHER), "link", "set", f"to-{address}", "master", LINK)

    def signal(self, address: str, signum: int) -> None:
        """To every process of the host, as `docker kill` and `docker pause` do."""
        # Those that are killed last must not tell of the death of the first.
        for number in (signal.SIGSTOP, signum) if signum == signal.SIGKILL else (signum,):
            for pid in self.processes(address):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def processes(self, address: str) -> list[int]:
        """All but the server."""
        found = map(int, _run("ip", "netns", "pids", self.namespace(address)).split())
        return [pid for pid in found if address not in self.servers or pid != self.servers[address].pid]

    def memory(self, address: str) -> list[str]:
        """What is in the host's memory, which is its own: folders for commits, what MPI's ranks share."""
        return _run("nsenter", "-t", str(self.servers[address].pid), "-m", "ls", "/dev/shm").split()

    def commits(self, address: str) -> list[str]:
        return [name for name in self.memory(address) if name.startswith("tfdist-")]

    def on(self, address: str) -> tuple[str, ...]:
        """Words that run a command on a host, in the working folder, and not below the launcher."""
        if address == LAUNCHER:
            return ("ip", "netns", "exec", self.namespace(LAUNCHER))
        server = str(self.servers[address].pid)
        return ("nsenter", "--target", server, "--net", "--uts", "--mount", "--wd")

    def add_addresses(self, *addresses: str) -> None:
        """Gives the launcher's machine and the two hosts one more address each, at once usable."""
        for machine, address in zip((LAUNCHER, FIRST, SECOND), addresses, strict=True):
            _run(*f"ip -n {self.namespace(machine)} address add {address} dev {LINK} nodad".split())

    def serve(self, address: str, environment: Mapping[str, str]) -> None:
        os.mkfifo(self.agent.parent / address)
        self.servers[address] = subprocess.Popen(
            ["ip", "netns", "exec", self.namespace(address), "unshare", "--uts", "sh", "-c", SERVER, "sh", address],
            cwd=self.agent.parent,
            # A daemon of MPI that is killed leaves a folder here, by its number: another one with that cannot start.
            env={**environment, "TMPDIR": str(self.agent.parent)},
        )

    def add_bridge(self, name: str, network: str) -> None:
        """Gives all three an interface with the same address, which leads to nobody, as containers' engines do."""
        for address in (LAUNCHER, FIRST, SECOND):
            for words in (f"link add {name} type bridge", f"address add {network} dev {name}", f"link set {name} up"):
                _run("ip", "-n", self.namespace(address), *words.split())

    def start(
        self,
        launch: Any,
        *words: str,
        ranks: int = 2,
        slots: int = 1,
        script: str = "",
        network: Sequence[str] = ("--network-interfaces", LINK),
    ) -> Any:
        """`script` finds the hosts; without one they are both, with so many slots each."""
        hosts = ("--host-discovery-script", script) if script else ("-H", f"{FIRST}:{slots},{SECOND}:{slots}")
        by_mpi = launch.starter == "mpi"
        daemons = ("--mpi-args", f"--prtemca plm_ssh_agent {self.agent}") if by_mpi else ()
        return launch.start(
            *("-np", str(ranks), *hosts, *network, *daemons, "--host-timeout", str(HOST_TIMEOUT_S)),
            *(*words, "python", "rank.py"),
            variables={} if by_mpi else {"PATH": f"{self.agent.parent / 'bin'}:{os.environ['PATH']}"},
            inside=("ip", "netns", "exec", self.namespace(LAUNCHER)),
        )

    def wait_for_end(self, wait_until: Callable[..., None], *addresses: str) -> None:
        """Until nothing runs on these hosts."""
        for address in addresses:
            wait_until(lambda at=address: not self.processes(at), seconds=BOUND_S, what=f"the end of all on {address}")


@contextlib.contextmanager
def made_in(folder: Path, environment: Mapping[str, str]) -> Iterator[Machines]:
    """The three, until they are taken down; skips the test where that cannot be."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None:
        pytest.skip("needs root, ip and unshare to play other machines")
    agent = folder / "agent.sh"
    agent.write_text(AGENT)
    agent.chmod(0o755)
    ssh = folder / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(SSH)
    ssh.chmod(0o755)
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
            made.serve(address, environment)
        yield made
    finally:
        for server in made.servers.values():
            server.kill()
            server.wait()
        for address in (FIRST, SECOND, LAUNCHER):
            subprocess.run(["ip", "netns", "delete", made.namespace(address)], capture_output=True)
