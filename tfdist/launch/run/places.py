"""Where the processes of a job run, by their numbers, which are never used again. Starts none of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from tfdist.launch.host.host import Host, placement
from tfdist.launch.start.direct import Direct
from tfdist.launch.start.starter import Starter
from tfdist.launch.supervisor.crew import Crew

_HERE = ""


class Places:
    """Those of the first ranks, and of the newcomers since.

    Args:
        starter: The starter of the first ranks.

    Attributes:
        hosts: The name of each process's host.
    """

    def __init__(self, starter: Starter) -> None:
        self.hosts = list(placement(starter.hosts))
        self._served = set(starter.served) if isinstance(starter, Direct) else set()
        # The number of each process within its machine.
        self._numbers: list[int] = []
        for name in self.hosts:
            self._numbers.append(self._count(self._machine(name)))

    def add(
        self, hosts: Sequence[Host], served: Collection[str], present: Collection[int]
    ) -> Iterator[tuple[str, Crew]]:
        """Places for newcomers: yields the name of each host, with its crew.

        Args:
            hosts: The hosts, with the number of newcomers.
            served: The hosts among them, and so far, whose ranks an agent starts.
            present: The processes that still run.
        """
        self._served.update(served)
        size = len(self.hosts) + sum(host.slots for host in hosts)
        present = set(present)
        for host in hosts:
            first, machine = len(self.hosts), self._machine(host.name)
            taken = {self._numbers[process] for process in present if self._machine(self.hosts[process]) == machine}
            free = [number for number in range(len(taken) + host.slots) if number not in taken][: host.slots]
            self.hosts += [host.name] * host.slots
            self._numbers += free
            present.update(range(first, len(self.hosts)))
            yield host.name, Crew(first, host.slots, size, tuple(free))

    def is_served(self, name: str) -> bool:
        """Whether an agent starts the ranks of a host."""
        return name in self._served

    def folder(self, process: int, commits: str) -> str:
        """The folder for commits where a process runs: one for each agent, as several may share a machine's memory."""
        name = self.hosts[process]
        return f"{commits}-{name}" if name in self._served else commits

    def _machine(self, name: str) -> str:
        """This machine may have several names."""
        return name if name in self._served else _HERE

    def _count(self, machine: str) -> int:
        """How many processes so far are on a machine."""
        return sum(self._machine(name) == machine for name in self.hosts[: len(self._numbers)])
