"""Starts ranks without MPI: forks those of this machine, and has an agent on each other host do so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tfdist.errors import ConfigError
from tfdist.launch.start.starter import Starter
from tfdist.system.rank import job_place

Crew = tuple[int, int]


@dataclass(frozen=True)
class Direct(Starter):
    """The ranks connect by sockets.

    Attributes:
        served: The hosts whose ranks an agent starts.

    Raises:
        ConfigError: If the ranks of this machine do not follow each other.
    """

    name = "direct"
    place_variables = job_place.OWN

    served: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        here = [place for place, host in enumerate(self.hosts) if host.name not in self.served]
        if here and here[-1] - here[0] >= len(here):
            raise ConfigError(
                f"{', '.join(map(str, self.hosts))}: without MPI, the ranks of this machine must follow each other; "
                "list it once with all its slots"
            )

    @property
    def here(self) -> Crew:
        """The first rank of this machine, and how many there are."""
        own = [(first, count) for name, (first, count) in self._crews() if name not in self.served]
        return (own[0][0], sum(count for _, count in own)) if own else (0, 0)

    @property
    def elsewhere(self) -> dict[str, Crew]:
        """The same of each host with an agent."""
        return {name: crew for name, crew in self._crews() if name in self.served}

    def command(self, supervisor: Sequence[str], environment: Mapping[str, str]) -> list[str]:
        """The program of the supervisors with the ranks of this machine: the first, their number, and that of all."""
        return [*supervisor, *map(str, self.here), str(self.processes)]

    def _crews(self) -> Iterator[tuple[str, Crew]]:
        first = 0
        for host in self.hosts:
            yield host.name, (first, host.slots)
            first += host.slots

    def _wanted(self, root: bool) -> dict[str, str]:
        wanted = {"NCCL_NET": "Socket"} if self.tcp else {}
        if self.interfaces:
            wanted["NCCL_SOCKET_IFNAME"] = ",".join(self.interfaces)
        return wanted
