"""Hosts with slots that a manager has given, as all of its modules return them. Pure, but for files a manager names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tfdist.errors import ConfigError
from tfdist.launch.host.host import Host


@dataclass(frozen=True)
class Allocation:
    """The hosts of a job of a cluster manager.

    Attributes:
        manager: Its name, as in "Slurm".
        hosts: In the manager's order.
        source: The variables that this is from.
    """

    manager: str
    hosts: tuple[Host, ...]
    source: str

    @property
    def slots(self) -> int:
        return sum(host.slots for host in self.hosts)

    def __str__(self) -> str:
        return f"{', '.join(map(str, self.hosts))}, from {self.manager}'s {self.source}"


def read_text(variable: str, path: str) -> str:
    """The file that a variable names. Raises ConfigError."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{variable}={path} cannot be read: {error}; -H host:slots names hosts without it") from None
