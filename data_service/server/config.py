"""The configuration of a dispatcher and a worker: frozen and validated. Starts no server."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tfdist.data_service.inspection.address import LARGEST_PORT, ServiceAddress, is_loopback
from tfdist.errors import ConfigError
from tfdist.system.local_path import local_path

_TAG = re.compile(r"[A-Za-z0-9._-]{1,64}")
DISPATCHER_TIMEOUT_S = 60.0
DRAIN_TIMEOUT_S = 600.0
UNREAD_TIMEOUT_S = 300.0


def _check_ports(port: int, control_port: int | None) -> None:
    for name, value in (("port", port), ("control_port", control_port or 0)):
        if not 0 <= value <= LARGEST_PORT:
            raise ConfigError(f"{name} must be 0 (any free port) to {LARGEST_PORT}; received {value}.")
    if port and control_port == port:
        raise ConfigError(f"control_port must differ from port; received {port} for both.")
    if port == LARGEST_PORT and control_port is None:
        raise ConfigError(f"port {port} has no port above it for control; set control_port.")


def _set_work_dir(config: DispatcherConfig | WorkerConfig) -> None:
    if config.work_dir:
        object.__setattr__(config, "work_dir", str(local_path(config.work_dir, "work_dir")))


def _check_seconds(name: str, value: float) -> None:
    if not 0 < value < float("inf"):
        raise ConfigError(f"{name} must be a finite number of seconds greater than 0; received {value}.")


def _check_tags(tags: Sequence[str]) -> None:
    if isinstance(tags, str):
        raise ConfigError(
            f"tags must be a sequence of words; received the string {tags!r}. Write ({tags!r},) for a single tag."
        )
    for tag in tags:
        if not _TAG.fullmatch(tag):
            raise ConfigError(f"a tag must be 1 to 64 letters, digits, dots, - and _; received {tag!r}.")
    if len(set(tags)) != len(tags):
        raise ConfigError(f"tags must be unique; received {', '.join(tags)}.")


@dataclass(frozen=True)
class DispatcherConfig:
    """How to start a dispatcher.

    Attributes:
        host: Name or address at which trainers and workers reach this machine. A loopback address, as by default,
            closes the ports to other machines.
        port: TCP port; 0 takes a free one.
        control_port: TCP port of health, metrics and status; None takes `port` + 1.
        work_dir: Folder for the journal; the same path on every worker. None keeps no journal.
        fault_tolerant: Whether a restarted dispatcher continues from the journal.
        worker_addresses: "HOST:PORT" of all workers, in the order of their shards. Needed for sharding by "file",
            "data", "file_or_data" and "hint", where each worker has a fixed shard.
        insecure: Leaves the ports open to other machines whatever `host` is.
        unread_timeout_s: Seconds after which a pass that is no longer read, for example because a trainer was killed,
            is removed. Until then a draining worker waits for it if the data is endless.
    """

    host: str = "localhost"
    port: int = 0
    control_port: int | None = None
    work_dir: str | None = None
    fault_tolerant: bool = False
    worker_addresses: Sequence[str] = ()
    insecure: bool = False
    unread_timeout_s: float = UNREAD_TIMEOUT_S

    def __post_init__(self) -> None:
        _check_ports(self.port, self.control_port)
        _check_seconds("unread_timeout_s", self.unread_timeout_s)
        _set_work_dir(self)
        for address in self.worker_addresses:
            ServiceAddress.parse(address)
        if self.fault_tolerant and not self.work_dir:
            raise ConfigError("fault_tolerant=True needs a work_dir to keep the journal in; received None.")

    @property
    def local(self) -> bool:
        """Whether only this machine is to reach the ports."""
        return is_loopback(self.host) and not self.insecure


@dataclass(frozen=True)
class WorkerConfig:
    """How to start a worker.

    Attributes:
        dispatcher: "HOST:PORT" of the dispatcher, or "HOST:PORT/CONTROL" if its control port is not PORT + 1.
        host: Name or address at which trainers reach this machine. A loopback address, as by default, closes the ports
            to other machines.
        port: TCP port; 0 takes a free one.
        control_port: TCP port of health, metrics and status; None takes `port` + 1. Surveys do not find any other port
            and then show the worker as "unknown".
        work_dir: The dispatcher's work_dir as mounted here, verified to be the same folder. None skips the check.
        key_file: File with mode 0600 that holds the key for drain requests; None accepts only SIGTERM.
        dispatcher_timeout_s: Seconds to wait for the dispatcher at startup. During a pass TensorFlow lets a worker wait
            up to an hour for a missing dispatcher; the trainer's `wait_seconds` is the limit then.
        insecure: Leaves the ports open to other machines whatever `host` is.
        tags: Labels shown by surveys and passed to tf.data, which treats "COLOCATED" as a worker in the trainer's
            process.
        cores: Processor cores that this process may use from then on, including TensorFlow's threads; None sets no
            limit.
    """

    dispatcher: str
    host: str = "localhost"
    port: int = 0
    control_port: int | None = None
    work_dir: str | None = None
    key_file: str | None = None
    dispatcher_timeout_s: float = DISPATCHER_TIMEOUT_S
    insecure: bool = False
    tags: Sequence[str] = ()
    cores: int | None = None

    def __post_init__(self) -> None:
        _check_ports(self.port, self.control_port)
        _check_seconds("dispatcher_timeout_s", self.dispatcher_timeout_s)
        _set_work_dir(self)
        _check_tags(self.tags)
        if self.cores is not None and self.cores < 1:
            raise ConfigError(f"cores must be 1 or more, or None for all; received {self.cores}.")
        try:
            ServiceAddress.parse(self.dispatcher)
        except ConfigError as error:
            raise ConfigError(f"dispatcher: {error}") from None

    @property
    def local(self) -> bool:
        """Whether only this machine is to reach the ports."""
        return is_loopback(self.host) and not self.insecure
