"""What a dispatcher and a worker need to know before they start. Frozen, checked, and without a server."""

from __future__ import annotations

from dataclasses import dataclass

from tfdist.errors import ConfigError


def _check_port(port: int) -> None:
    if not 0 <= port <= 65535:
        raise ConfigError(f"port must be 0 (any free port) to 65535; received {port}.")


@dataclass(frozen=True)
class DispatcherConfig:
    """How to start a dispatcher.

    Attributes:
        host: Name or address under which trainers and workers reach this machine.
        port: TCP port; 0 takes a free one.
        work_dir: Folder for the journal; the same path on every worker. None keeps no journal.
        fault_tolerant: Whether a restarted dispatcher goes on from the journal.
    """

    host: str = "localhost"
    port: int = 0
    work_dir: str | None = None
    fault_tolerant: bool = False

    def __post_init__(self) -> None:
        _check_port(self.port)
        if self.fault_tolerant and not self.work_dir:
            raise ConfigError("fault_tolerant=True needs a work_dir to keep the journal in; received None.")


@dataclass(frozen=True)
class WorkerConfig:
    """How to start a worker.

    Attributes:
        dispatcher: "HOST:PORT" of the dispatcher.
        host: Name or address under which trainers reach this machine.
        port: TCP port; 0 takes a free one.
    """

    dispatcher: str
    host: str = "localhost"
    port: int = 0

    def __post_init__(self) -> None:
        _check_port(self.port)
        host, _, port = self.dispatcher.rpartition(":")
        if not host or not port.isdigit():
            raise ConfigError(f'dispatcher must be "HOST:PORT"; received {self.dispatcher!r}.')
