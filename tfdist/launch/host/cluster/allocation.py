"""The result of every cluster manager module: allocated hosts with their slots. Reads the files a manager names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tfdist.errors import ConfigError
from tfdist.launch.host.host import Host


@dataclass(frozen=True)
class Allocation:
    """The hosts that a cluster manager allocated to a job.

    Attributes:
        manager: Its name, as in "Slurm".
        hosts: In the manager's order.
        source: The variables this was read from.
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
    """The contents of the file that a variable names. Raises ConfigError."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{variable}={path} cannot be read: {error}; to do without it, name hosts with -H host:slots"
        ) from None
