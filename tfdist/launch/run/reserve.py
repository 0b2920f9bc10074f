"""The agents that come by themselves to an elastic job: the first ones, and those that dial its port while it runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import replace

from tfdist.errors import ConfigError
from tfdist.launch.host.host import Host
from tfdist.launch.run.force import Force, judged
from tfdist.launch.wire.link import Link
from tfdist.launch.wire.muster import Lobby, Recruit, dismiss
from tfdist.launch.wire.tls import TlsLink


class Reserve:
    """Knows which hosts have an agent, and keeps those that no rank runs on yet. Thread-safe.

    Args:
        force: The first agents.
        key: What agents must have.
        say: Called with lines for the user.
        reserved: Names that no host of theirs may have.
    """

    def __init__(self, force: Force, key: bytes, say: Callable[[str], None], reserved: Collection[str] = ()) -> None:
        self._force, self._say, self._reserved = force, say, frozenset(reserved)
        self._lock = threading.Lock()  # guards all below
        # The slots of those that the job was given, which may be lost meanwhile, and those that wait.
        self._given = dict(force.recruits)
        self._waiting: dict[str, Recruit] = {}
        # Those of the former that are about to leave.
        self._leaving: set[str] = set()
        self._serves: Callable[[str], bool] = lambda _: True
        self._lobby = Lobby(force.identity, key, self._judge, say, self._admit)

    def follow(self, serves: Callable[[str], bool]) -> None:
        """From now on this says whether the agent of a host that the job was given is still there."""
        with self._lock:
            self._serves = serves

    def pass_on(self, link: Link, address: tuple[str, int]) -> None:
        """Takes an agent's connection that has come to the job's port."""
        assert isinstance(link, TlsLink)
        self._lobby.pass_on(link, address)

    def hosts(self) -> tuple[Host, ...]:
        """The hosts that have an agent now, which stays."""
        with self._lock:
            there = {name: recruit for name, recruit in self._given.items() if self._is_served(name)} | self._waiting
            return tuple(Host(name, recruit.slots) for name, recruit in there.items() if name not in self._leaving)

    def take(self, names: Collection[str]) -> tuple[dict[str, str], Force | None]:
        """Gives these hosts to the job: the addresses of those that have an agent, and the agents that had waited."""
        with self._lock:
            recruits = {name: self._waiting.pop(name) for name in names if name in self._waiting}
            self._given |= recruits
            addresses = {name: self._given[name].address for name in names if name in self._given}
            force = replace(self._force, recruits=recruits, owns_port=False)
            return addresses, force if recruits else None

    def withdraw(self, name: str) -> None:
        """The agent of a host is about to leave."""
        with self._lock:
            self._leaving.add(name)

    def close(self, status: int, reason: str) -> None:
        """Ends those that wait with the status of the job."""
        self._lobby.close()
        with self._lock:
            for recruit in self._waiting.values():
                dismiss(recruit, status, reason)
                recruit.conversation.link.close()
            self._waiting.clear()

    def _judge(self, recruit: Recruit) -> str:
        """Why an agent cannot take part, which costs the job nothing."""
        try:
            return judged(recruit, self._say)
        except ConfigError as error:
            self._say(str(error))
            return str(error)

    def _admit(self, recruit: Recruit) -> None:
        """A host has the name by which its agent calls it, unless another one has it now."""
        with self._lock:
            name, number = recruit.host, 1
            while name in self._reserved or name in self._waiting or self._is_served(name):
                number += 1
                name = f"{recruit.host}-{number}"
            self._given.pop(name, None)
            self._leaving.discard(name)
            self._waiting[name] = recruit
        self._say(f"an agent has come from {name} ({recruit.address}), which offers {recruit.slots} slots")

    def _is_served(self, name: str) -> bool:
        return name in self._given and self._serves(name)
