"""Launchers and agents on the hosts of `machine`, with a key file, for tests of both. No test of its own."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from machine import FIRST, HOST_TIMEOUT_S, LAUNCHER, SECOND, Machines

HEAD = "import os, signal, socket, sys, time\nrank = int(os.environ['RANK'])\n"
PORT = 4000
AT = f"{LAUNCHER}:{PORT}"
COMMAND = ("-m", "tfdist.command")
STAYS = "open(f'up{rank}', 'w').close()\nwhile True: time.sleep(0.05)\n"
# The names of the two hosts as they call themselves.
NODES = {FIRST: "node-2", SECOND: "node-3"}


@dataclass(frozen=True)
class Company:
    """Starts launchers and agents; the ports are those of the launcher's machine alone."""

    machines: Machines
    launch: Any
    wait_until: Callable[..., None]

    def wait_for_hosts(self) -> None:
        """Until both have their names and their memory: then they read what they are asked to run."""
        for address in self.machines.servers:
            ready = self.machines.agent.with_name(f"{address}.ready")
            self.wait_until(ready.exists, what="the host")

    def key(self, name: str = "job.key") -> str:
        path = self.launch.folder / name
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex(32) + "\n")
        return name

    def script(self, text: str) -> None:
        (self.launch.folder / "rank.py").write_text(HEAD + text)

    def agent(self, address: str, *words: str, key: str = "job.key", slots: int = 2, at: str = AT) -> Any:
        offered = ("agent", "--launcher", at, "--key-file", key, "--slots", str(slots))
        return self.launch.start(*offered, *words, program=COMMAND, inside=self.machines.on(address))

    def agents(self) -> list[Any]:
        return [self.agent(FIRST), self.agent(SECOND)]

    def launcher(
        self,
        *words: str,
        count: int = 2,
        at: str = AT,
        variables: Mapping[str, str] | None = None,
        inside: tuple[str, ...] = (),
    ) -> Any:
        return self.launch.start(
            *("--agents", str(count), "--listen", at, "--key-file", "job.key", "--host-timeout", str(HOST_TIMEOUT_S)),
            *(*words, "python", str(self.launch.folder / "rank.py")),
            inside=(*self.machines.on(LAUNCHER), *inside),
            variables=variables,
        )

    def running(self, text: str = STAYS, ranks: int = 4) -> tuple[Any, list[Any]]:
        """A launcher and two agents whose ranks are up."""
        self.key()
        self.script(text)
        agents = self.agents()
        launcher = self.launcher()
        self.wait_until(lambda: len(self.launch.files("up*")) == ranks, what="the ranks")
        return launcher, agents

    def nothing_is_left(self, *addresses: str) -> None:
        self.machines.wait_for_end(self.wait_until, *addresses)

    def programs(self, address: str) -> dict[int, str]:
        """The command lines of what runs on a host, by process."""
        here = set(self.machines.processes(address))
        return {pid: words for pid, words in self.launch.processes().items() if pid in here}

    def agent_of(self, address: str) -> int:
        """The process of the agent itself, whose crew has the same command line."""
        found = [pid for pid, words in self.programs(address).items() if " agent --launcher " in words]
        (agent,) = [pid for pid in found if _parent(pid) not in found]
        return agent


def _parent(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])
