"""Hosts, GPUs and what connects them, as a JSON file describes them. It knows no collective and measures nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tfdist.command.bench.scale.scale_document import Document
from tfdist.errors import ConfigError

_MOST = 4096


@dataclass(frozen=True)
class Cluster:
    """Equal hosts with equal GPUs.

    Attributes:
        name: Of the cluster.
        hosts: How many there are; predictions for more are extrapolations.
        gpus_per_host: GPUs, and so ranks, of a host.
        intra_bandwidth: Bytes a second that each GPU can send, and receive at the same time, inside its host.
        inter_bandwidth: Bytes a second of a host's network card in each direction; its GPUs share it.
        intra_latency_s: Seconds of an empty message inside a host.
        inter_latency_s: Seconds of an empty message between hosts.
        software_latency_s: Seconds that each message costs in the processes besides.
        memory_bandwidth: Bytes a second that a GPU reads and writes, for casts.
        sources: Where figures come from, by field.
    """

    name: str
    hosts: int
    gpus_per_host: int
    intra_bandwidth: float
    inter_bandwidth: float
    intra_latency_s: float = 0.0
    inter_latency_s: float = 0.0
    software_latency_s: float = 0.0
    memory_bandwidth: float = float("inf")
    sources: dict[str, str] = field(default_factory=dict)

    def counts(self) -> tuple[int, ...]:
        """Numbers of GPUs, each about twice the last, that fill a part of one host or whole hosts: 1 to 4,096."""
        part, whole = 1, self.gpus_per_host
        counts = []
        while part < self.gpus_per_host:
            counts.append(part)
            part *= 2
        while whole <= max(_MOST, self.gpus_per_host):
            counts.append(whole)
            whole *= 2
        return tuple(counts)

    def place(self, gpus: int) -> Placement:
        """Where so many ranks run: on one host as long as they fit, then on whole hosts.

        Raises:
            ConfigError: If some of several hosts would not be full.
        """
        if gpus <= self.gpus_per_host:
            return Placement(1, gpus)
        hosts, rest = divmod(gpus, self.gpus_per_host)
        if rest:
            raise ConfigError(
                f"{gpus} GPUs do not fill hosts of {self.gpus_per_host}; give a multiple of {self.gpus_per_host}, "
                "or fewer than one host has"
            )
        return Placement(hosts, self.gpus_per_host)


@dataclass(frozen=True)
class Placement:
    """Ranks on `hosts` hosts with `local` of them each."""

    hosts: int
    local: int

    @property
    def ranks(self) -> int:
        return self.hosts * self.local


def read(path: Path) -> Cluster:
    """The cluster that a file describes: bandwidths in GB/s (10^9 bytes), latencies in microseconds.

    Raises:
        ConfigError: If a field is missing, wrong or not known.
    """
    document = Document.read(path)
    cluster = Cluster(
        name=document.text("name"),
        hosts=document.whole("hosts"),
        gpus_per_host=document.whole("gpus_per_host"),
        intra_bandwidth=document.number("intra_bandwidth_gb_s", positive=True) * 1e9,
        inter_bandwidth=document.number("inter_bandwidth_gb_s", positive=True) * 1e9,
        intra_latency_s=document.number("intra_latency_us") / 1e6,
        inter_latency_s=document.number("inter_latency_us") / 1e6,
        software_latency_s=document.number("software_latency_us") / 1e6,
        memory_bandwidth=document.number("memory_bandwidth_gb_s", positive=True) * 1e9,
        sources=document.texts("sources"),
    )
    document.finish()
    return cluster
