"""Steps whose time on many GPUs can be computed by hand, and what must hold for all of them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.command.bench.scale import scale_prediction
from tfdist.command.bench.scale.scale_cluster import Cluster
from tfdist.command.bench.scale.scale_prediction import Manner, predict
from tfdist.command.bench.scale.scale_step import Layer, Step

INFINITE = float("inf")
# 1 s forward; three layers of 2, 3 and 4 s backward, of which the first makes two gradients; 10 images.
STEP = Step("small", 32, 10, 1.0, (Layer("c", 2.0, (100, 20)), Layer("b", 3.0), Layer("a", 4.0, (60,))))
ALONE = [[0], [1], [2]]
# Two hosts of one GPU at 10 bytes/s: a ring of two takes size / 10 seconds.
PAIR = Cluster("pair", 2, 1, INFINITE, 10)


def test_ready_times() -> None:
    assert STEP.seconds == 10
    assert STEP.gradients == [100, 20, 60]
    assert STEP.ready() == [3, 3, 10]
    assert STEP.ready(2.0) == [6, 6, 20]


def test_one_gpu_exchanges_nothing() -> None:
    made = predict(replace(STEP, update_s=2.0, deviation=0.5), ALONE, PAIR, 1, Manner())
    assert (made.hosts, made.step_s, made.exposed_s, made.communication_s) == (1, 12, 0, 0)
    assert (made.images_per_second, made.efficiency) == (10 / 12, 1)


@pytest.mark.parametrize("overlap", [True, False])
def test_no_gradients_cost_nothing(overlap: bool) -> None:
    step = replace(STEP, layers=(Layer("c", 9.0, (0, 0)),))
    made = predict(step, [[0, 1]], PAIR, 2, Manner(overlap=overlap))
    assert (made.step_s, made.communication_s, made.efficiency) == (10, 0, 1)


def test_infinite_bandwidth_costs_nothing() -> None:
    made = predict(STEP, ALONE, Cluster("", 1024, 4, INFINITE, INFINITE), 4096, Manner())
    assert (made.hosts, made.step_s, made.efficiency) == (1024, 10, 1)
    assert made.images_per_second == 4096


def test_overlap_by_hand() -> None:
    """The first two buckets travel from 3 to 13 and to 15 s, so the third, which is there at 10 s, ends at 21 s."""
    made = predict(STEP, ALONE, PAIR, 2, Manner())
    assert (made.communication_s, made.step_s, made.exposed_s, made.compute_s) == (18, 21, 11, 10)
    assert made.efficiency == pytest.approx(10 / 21)
    assert made.images_per_second == pytest.approx(20 / 21)


def test_perfect_overlap_hides_all_but_the_last_bucket() -> None:
    """At 100 bytes/s the first two end at 4.2 s; the last one, of 60 bytes, is there when all is computed."""
    made = predict(STEP, ALONE, replace(PAIR, inter_bandwidth=100), 2, Manner())
    assert made.exposed_s == pytest.approx(0.6)
    hidden = replace(STEP, layers=(*STEP.layers[:2], Layer("a", 4.0)))
    assert predict(hidden, [[0], [1]], replace(PAIR, inter_bandwidth=100), 2, Manner()).efficiency == 1


def test_without_overlap_all_of_it_is_exposed() -> None:
    made = predict(STEP, ALONE, PAIR, 2, Manner(overlap=False))
    assert (made.step_s, made.exposed_s, made.communication_s) == (28, 18, 18)


def test_a_bucket_waits_for_its_last_gradient() -> None:
    """[0, 2] is there at 10 s, and [1] travels before it, at 3 s."""
    made = predict(STEP, [[0, 2], [1]], PAIR, 2, Manner())
    assert made.step_s == 10 + 16
    assert predict(STEP, [[0, 1, 2]], PAIR, 2, Manner()).step_s == 28


def test_update_comes_after_everything() -> None:
    made = predict(replace(STEP, update_s=2.0), ALONE, PAIR, 2, Manner())
    assert (made.step_s, made.compute_s, made.exposed_s) == (23, 12, 11)
    assert made.efficiency == pytest.approx(12 / 23)


def test_the_slowest_of_two_ranks_decides() -> None:
    """The larger of two normal numbers is 1 / sqrt(pi) above the mean."""
    slower = 1 + 0.1 / math.sqrt(math.pi)
    assert scale_prediction.stretch(2, 0.1) == pytest.approx(slower)
    made = predict(replace(STEP, deviation=0.1), ALONE, replace(PAIR, inter_bandwidth=INFINITE), 2, Manner())
    assert made.step_s == pytest.approx(10 * slower)
    assert made.efficiency == pytest.approx(1 / slower)
    late = predict(replace(STEP, deviation=0.1), ALONE, PAIR, 2, Manner())
    assert late.step_s == pytest.approx(3 * slower + 18)  # bound by the network from the first bucket on


def test_compression_halves_the_wire_and_casts() -> None:
    """90 bytes travel in 9 s; a cast reads and writes 270 bytes, there and back, at 1,000 bytes/s."""
    cluster = replace(PAIR, memory_bandwidth=1000)
    made = predict(STEP, ALONE, cluster, 2, Manner("fp16", overlap=False))
    assert made.communication_s == pytest.approx(9 + 0.54)
    assert scale_prediction.wire_sizes(STEP, "bf16") == [50, 10, 30]
    assert scale_prediction.wire_sizes(replace(STEP, dtype="float64"), "fp16") == [25, 5, 15]
    assert scale_prediction.wire_sizes(replace(STEP, dtype="bfloat16"), "fp16") == STEP.gradients


def test_vgg_like_step_is_bound_by_the_network() -> None:
    """Its large gradients come first, so the wire is busy from then on: 500 MB over 128 hosts at 2.5 GB/s are 396.9 ms,
    from 0.17 s to 0.567 s, of which 0.467 s are computed.
    """
    layers = (Layer("dense", 0.01, (500_000_000,)), Layer("convolutions", 0.287, (0,)))
    step = Step("vgg", 224, 64, 0.16, layers, update_s=0.01)
    made = predict(step, [[0], [1]], Cluster("", 128, 4, INFINITE, 2.5e9), 512, Manner())
    busy = 2 * 127 / 128 * 0.5 / 2.5
    assert made.communication_s == pytest.approx(busy)
    assert made.step_s == pytest.approx(0.17 + busy + 0.01)
    assert made.efficiency == pytest.approx(0.467 / (0.18 + busy))
    twice = predict(step, [[0], [1]], Cluster("", 128, 4, INFINITE, 5e9), 512, Manner())
    assert twice.efficiency == 1


times = st.floats(0.001, 1)
layer = st.builds(
    Layer, st.just(""), times, st.lists(st.integers(0, 10**8).map(lambda count: 4 * count), max_size=3).map(tuple)
)
steps = st.builds(
    Step,
    *(st.just("any"), st.just(32), st.integers(1, 64), times),
    layers=st.lists(layer, min_size=1, max_size=6).map(tuple),
    update_s=times,
    deviation=st.floats(0, 0.1),
)
rates = st.floats(1e7, 1e12)
delays = st.floats(0, 1e-3)
clusters = st.builds(
    Cluster, st.just(""), st.just(8), st.sampled_from([1, 2, 4, 8]), rates, rates, delays, delays, delays, rates
)
manners = st.builds(Manner, st.sampled_from(["none", "fp16"]), st.sampled_from(["hierarchical", "flat"]), st.booleans())


def pairs(step: Step) -> list[list[int]]:
    """A plan: two gradients a bucket."""
    positions = list(range(len(step.gradients)))
    return [positions[start : start + 2] for start in range(0, len(positions), 2)]


def at_most(less: float, more: float) -> bool:
    return less <= more * (1 + 1e-9)


@settings(max_examples=150, deadline=None)
@given(steps, clusters, st.integers(1, 100), manners, st.floats(1, 100))
def test_more_bandwidth_is_never_slower(
    step: Step, cluster: Cluster, hosts: int, manner: Manner, factor: float
) -> None:
    faster = replace(
        cluster, intra_bandwidth=cluster.intra_bandwidth * factor, inter_bandwidth=cluster.inter_bandwidth * factor
    )
    gpus = hosts * cluster.gpus_per_host
    slow, fast = (predict(step, pairs(step), each, gpus, manner) for each in (cluster, faster))
    assert at_most(fast.step_s, slow.step_s)
    assert at_most(slow.efficiency, fast.efficiency)


@settings(max_examples=150, deadline=None)
@given(steps, clusters, st.integers(1, 100), st.integers(1, 100), manners)
def test_more_hosts_are_never_faster_for_a_gpu(
    step: Step, cluster: Cluster, hosts: int, added: int, manner: Manner
) -> None:
    few, many = (
        predict(step, pairs(step), cluster, count * cluster.gpus_per_host, manner) for count in (hosts, hosts + added)
    )
    assert at_most(many.efficiency, few.efficiency)
    assert few.efficiency <= 1 + 1e-9


@settings(max_examples=150, deadline=None)
@given(steps, clusters, st.integers(1, 100), manners)
def test_compression_never_takes_longer_on_the_wire(step: Step, cluster: Cluster, hosts: int, manner: Manner) -> None:
    free = replace(cluster, memory_bandwidth=INFINITE)  # so that only the wire is left
    gpus = hosts * cluster.gpus_per_host
    none, half = (
        predict(step, pairs(step), free, gpus, replace(manner, compression=kind)) for kind in ("none", "fp16")
    )
    assert at_most(half.communication_s, none.communication_s)
    assert at_most(half.step_s, none.step_s)


@settings(max_examples=150, deadline=None)
@given(steps, clusters, st.integers(1, 100), manners)
def test_overlap_is_never_slower_and_hides_at_most_everything(
    step: Step, cluster: Cluster, hosts: int, manner: Manner
) -> None:
    gpus = hosts * cluster.gpus_per_host
    over, after = (predict(step, pairs(step), cluster, gpus, replace(manner, overlap=flag)) for flag in (True, False))
    assert at_most(over.step_s, after.step_s)
    assert after.exposed_s == pytest.approx(after.communication_s, abs=1e-9)
    assert at_most(over.compute_s, over.step_s)
