"""How long an allreduce takes on a described cluster: formulas, nothing measured.

The cost of a message of m bytes is alpha + m / bandwidth (Hockney's model, as in Thakur, Rabenseifner, Gropp (2005),
"Optimization of collective communication operations in MPICH", section 3). The additions of a reduction are left out:
on GPUs they are hidden behind the transfer. So is contention between hosts: every network card is taken to reach every
other one at its full rate.
"""

from __future__ import annotations

import math

from tfdist.command.bench.scale.scale_cluster import Cluster, Placement

SCHEDULES = ("hierarchical", "flat")


def ring_s(ranks: int, size: float, bandwidth: float, latency_s: float) -> float:
    """Reduce-scatter and allgather around a ring: 2 (n - 1) messages of size / n bytes, one after the other.

    Source: Thakur et al. (2005), section 4.5 (reduce-scatter and allgather) with the ring of section 4.1 in both.
    """
    return 2 * half_ring_s(ranks, size, bandwidth, latency_s)


def half_ring_s(ranks: int, size: float, bandwidth: float, latency_s: float) -> float:
    """A reduce-scatter, or an allgather, around a ring: n - 1 messages of size / n bytes.

    Source: Thakur et al. (2005), section 4.1.
    """
    return (ranks - 1) * (latency_s + size / ranks / bandwidth)


def tree_s(ranks: int, size: float, bandwidth: float, latency_s: float) -> float:
    """A reduction to one rank and a broadcast from it, both by a binomial tree: 2 ceil(log2 n) messages of all bytes.

    Source: Thakur et al. (2005), sections 4.2 (broadcast) and 4.5 (reduce).
    """
    return 2 * math.ceil(math.log2(ranks)) * (latency_s + size / bandwidth)


def allreduce_s(cluster: Cluster, place: Placement, size: float, schedule: str = "hierarchical") -> float:
    """Seconds of one allreduce of `size` bytes on the wire; 0 where there is nothing to exchange.

    Args:
        cluster: What connects the ranks.
        place: Where they are.
        size: Bytes of each rank.
        schedule: "hierarchical" is tfdist's: each of g local ranks gets 1/g of the sums of its host by a
            reduce-scatter, allreduces that between the hosts by ring or tree, whichever is faster, with 1/g of the
            network card, and an allgather ends it. "flat" is one ring through all ranks that enters and leaves each
            host once, as NCCL's ring does.
    """
    if place.ranks == 1 or size == 0:
        return 0.0
    inside = cluster.intra_latency_s + cluster.software_latency_s
    between = cluster.inter_latency_s + cluster.software_latency_s
    if place.hosts == 1:
        return ring_s(place.local, size, cluster.intra_bandwidth, inside)
    if schedule == "flat":
        return _flat_ring_s(cluster, place, size, inside, between)
    own = (place.hosts, size / place.local, cluster.inter_bandwidth / place.local, between)
    local_s = 2 * half_ring_s(place.local, size, cluster.intra_bandwidth, inside)
    return local_s + min(ring_s(*own), tree_s(*own))


def _flat_ring_s(cluster: Cluster, place: Placement, size: float, inside: float, between: float) -> float:
    """All links of the ring carry the same bytes, so the slowest one decides; 2 (h - 1) of its messages leave a host.

    Source of the latencies' part: NVIDIA/nccl, src/graph/tuning.cc, ncclTopoTuneModel (nsteps and nInterSteps).
    """
    slowest = min(cluster.inter_bandwidth, cluster.intra_bandwidth) if place.local > 1 else cluster.inter_bandwidth
    latencies_s = 2 * ((place.hosts - 1) * between + (place.ranks - place.hosts) * inside)
    return latencies_s + ring_s(place.ranks, size, slowest, 0.0)


def cast_s(cluster: Cluster, size: float, wire_size: float) -> float:
    """Casting `size` bytes to `wire_size` bytes and back: each is read once and written once, both ways."""
    return 0.0 if size == wire_size else 2 * (size + wire_size) / cluster.memory_bandwidth
