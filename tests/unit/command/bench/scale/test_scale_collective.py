"""Times of an allreduce that can be computed by hand, and what must hold for all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.command.bench.scale import scale_collective
from tfdist.command.bench.scale.scale_cluster import Cluster, Placement
from tfdist.command.bench.scale.scale_collective import allreduce_s, cast_s, half_ring_s, ring_s, tree_s
from tfdist.errors import ConfigError

# 1 ms inside, 10 ms between hosts, no software; 100 bytes a second inside, 10 between.
SLOW = Cluster("slow", 8, 4, intra_bandwidth=100, inter_bandwidth=10, intra_latency_s=0.001, inter_latency_s=0.01)
INFINITE = float("inf")
SCHEDULES = scale_collective.SCHEDULES


def test_ring_by_hand() -> None:
    """4 ranks, 40 bytes: 6 messages of 10 bytes, each 0.5 s and 10 / 5 s."""
    assert ring_s(4, 40, 5, 0.5) == 6 * 2.5
    assert half_ring_s(4, 40, 5, 0.5) == 3 * 2.5


@pytest.mark.parametrize(("ranks", "messages"), [(2, 2), (3, 4), (4, 4), (5, 6), (8, 6), (9, 8)])
def test_tree_by_hand(ranks: int, messages: int) -> None:
    assert tree_s(ranks, 40, 5, 0.5) == messages * 8.5


def test_one_host_is_a_ring_inside() -> None:
    """4 ranks, 200 bytes at 100 bytes/s: 6 messages of 50 bytes."""
    for schedule in SCHEDULES:
        assert allreduce_s(SLOW, Placement(1, 4), 200, schedule) == pytest.approx(6 * 0.501)


def test_hosts_by_hand() -> None:
    """3 hosts of 4: reduce-scatter and allgather inside as above; 4 rings of 3 with 50 bytes at 2.5 bytes/s."""
    between = 4 * (0.01 + 50 / 3 / 2.5)
    assert allreduce_s(SLOW, Placement(3, 4), 200) == pytest.approx(6 * 0.501 + between)


def test_short_messages_take_the_tree() -> None:
    """8 hosts of 4, 4 bytes: 1 byte for each local rank; a ring has 14 messages of 1/8 byte, a tree 6 of 1 byte."""
    slow_start = Cluster("", 8, 4, 100, 10, intra_latency_s=0.0, inter_latency_s=1.0)
    inside = 6 * 1 / 100
    assert allreduce_s(slow_start, Placement(8, 4), 4) == pytest.approx(inside + 6 * (1 + 1 / 2.5))
    assert ring_s(8, 1, 2.5, 1.0) == pytest.approx(14 * (1 + 1 / 8 / 2.5))


def test_flat_ring_by_hand() -> None:
    """3 hosts of 4: 22 messages of 200 / 12 bytes at the network's rate; 4 of them leave a host."""
    expected = 22 * 200 / 12 / 10 + 4 * 0.01 + 18 * 0.001
    assert allreduce_s(SLOW, Placement(3, 4), 200, "flat") == pytest.approx(expected)


def test_one_gpu_a_host_is_the_ring_between_hosts() -> None:
    for schedule in SCHEDULES:
        assert allreduce_s(SLOW, Placement(3, 1), 60, schedule) == pytest.approx(ring_s(3, 60, 10, 0.01))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_nothing_to_exchange(schedule: str) -> None:
    assert allreduce_s(SLOW, Placement(1, 1), 1e9, schedule) == 0
    assert allreduce_s(SLOW, Placement(8, 4), 0, schedule) == 0


def test_infinite_bandwidth_leaves_latencies() -> None:
    """8 hosts of 4: 6 messages inside; 6 of a tree, which is less than 14 of a ring."""
    fast = Cluster("", 8, 4, INFINITE, INFINITE, 0.001, 0.01, software_latency_s=0.1)
    assert allreduce_s(fast, Placement(8, 4), 1e12) == pytest.approx(6 * 0.101 + 6 * 0.11)
    assert allreduce_s(fast, Placement(8, 4), 1e12, "flat") == pytest.approx(14 * 0.11 + 48 * 0.101)


def test_all_of_it_free() -> None:
    free = Cluster("", 8, 4, INFINITE, INFINITE)
    assert allreduce_s(free, Placement(8, 4), 1e12) == allreduce_s(free, Placement(8, 4), 1e12, "flat") == 0


def test_network_card_is_shared_and_used_fully() -> None:
    """Without latencies, hierarchy or not, 2 (h - 1) / h of the bytes pass each network card."""
    wide = Cluster("", 128, 4, INFINITE, 3e9)
    assert allreduce_s(wide, Placement(128, 4), 600e6) == pytest.approx(2 * 127 / 128 * 600e6 / 3e9)
    assert allreduce_s(wide, Placement(128, 4), 600e6, "flat") == pytest.approx(2 * 511 / 512 * 600e6 / 3e9)


def test_casts_by_hand() -> None:
    """400 bytes to 200 and back: 600 bytes are read or written, twice."""
    memory = Cluster("", 1, 4, 1, 1, memory_bandwidth=1000)
    assert cast_s(memory, 400, 200) == 1.2
    assert cast_s(memory, 400, 400) == 0


@pytest.mark.parametrize(("gpus", "hosts", "local"), [(1, 1, 1), (3, 1, 3), (4, 1, 4), (8, 2, 4), (4096, 1024, 4)])
def test_places(gpus: int, hosts: int, local: int) -> None:
    place = SLOW.place(gpus)
    assert (place.hosts, place.local, place.ranks) == (hosts, local, gpus)


@pytest.mark.parametrize(
    ("local", "counts"),
    [
        (1, tuple(1 << power for power in range(13))),
        (4, tuple(1 << power for power in range(13))),
        (6, (1, 2, 4, 6, 12, 24, 48, 96, 192, 384, 768, 1536, 3072)),
    ],
)
def test_counts_fill_hosts(local: int, counts: tuple[int, ...]) -> None:
    cluster = replace(SLOW, gpus_per_host=local)
    assert cluster.counts() == counts
    assert [cluster.place(count).ranks for count in counts] == list(counts)


def test_hosts_that_are_not_full_are_refused() -> None:
    with pytest.raises(ConfigError, match="6 GPUs do not fill hosts of 4; give a multiple of 4"):
        SLOW.place(6)


rates = st.floats(1e6, 1e12)
delays = st.floats(0, 1e-3)
sizes = st.floats(0, 1e10)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    return Cluster("", 8, draw(st.integers(1, 16)), draw(rates), draw(rates), draw(delays), draw(delays), draw(delays))


def at_most(less: float, more: float) -> bool:
    return less <= more * (1 + 1e-12)


@settings(max_examples=200, deadline=None)
@given(clusters(), st.integers(1, 300), sizes, st.floats(1, 100), st.sampled_from(SCHEDULES))
def test_more_bandwidth_is_never_slower(
    cluster: Cluster, hosts: int, size: float, factor: float, schedule: str
) -> None:
    fields = vars(cluster) | {"intra_bandwidth": cluster.intra_bandwidth * factor}
    inside = Cluster(**fields)
    both = Cluster(**(fields | {"inter_bandwidth": cluster.inter_bandwidth * factor}))
    place = Placement(hosts, cluster.gpus_per_host)
    times = [allreduce_s(each, place, size, schedule) for each in (both, inside, cluster)]
    assert at_most(times[0], times[1]) and at_most(times[1], times[2])


@settings(max_examples=200, deadline=None)
@given(clusters(), st.integers(1, 300), st.integers(1, 300), sizes, st.sampled_from(SCHEDULES))
def test_more_hosts_are_never_faster(cluster: Cluster, hosts: int, added: int, size: float, schedule: str) -> None:
    places = [Placement(count, cluster.gpus_per_host) for count in (hosts, hosts + added)]
    few, many = (allreduce_s(cluster, place, size, schedule) for place in places)
    assert at_most(few, many)


@settings(max_examples=200, deadline=None)
@given(clusters(), st.integers(1, 300), sizes, st.floats(0, 1), st.sampled_from(SCHEDULES))
def test_fewer_bytes_are_never_slower(cluster: Cluster, hosts: int, size: float, part: float, schedule: str) -> None:
    place = Placement(hosts, cluster.gpus_per_host)
    assert at_most(allreduce_s(cluster, place, size * part, schedule), allreduce_s(cluster, place, size, schedule))
