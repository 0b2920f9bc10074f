"""Which knobs there are in which world."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tfdist.native.knobs import CHUNKS, FUSION_THRESHOLDS, KIB, MIB, Knob, Setting, World, effective, offered, settings

Worlds = Callable[..., World]


def fields(world: World, default: Setting) -> dict[str, tuple[Any, ...]]:
    return {knob.field: knob.values for knob in offered(world, default)}


def test_everything_on_the_cpu_of_one_host(world: Worlds, default: Setting) -> None:
    assert fields(world(), default) == {
        "fusion_threshold": FUSION_THRESHOLDS,
        "chunk": CHUNKS,
        "compression": ("fp16", "none"),
        "thread": (False, True),
    }


def test_a_gpu_has_the_hierarchy_where_there_is_one(world: Worlds, default: Setting) -> None:
    assert set(fields(world(on_gpu=True), default)) == {"fusion_threshold", "compression"}
    assert fields(world(on_gpu=True, hosts=2), default)["hierarchy"] == ("nccl", "off")
    assert "hierarchy" not in fields(world(on_gpu=True, hosts=4), default)
    by_mpi = replace(default, hierarchy="mpi")
    assert fields(world(on_gpu=True, hosts=2), by_mpi)["hierarchy"] == ("mpi", "off")
    assert "hierarchy" not in fields(world(hosts=2), default)


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"lossy": False}, "compression"),
        ({"plan": None}, "fusion_threshold"),
        ({"plan": lambda threshold: "one bucket"}, "fusion_threshold"),
        ({"most_chunk": 0}, "chunk"),
        ({"compiled": True, "hosts": 2}, "thread"),
    ],
)
def test_what_makes_no_difference_is_not_offered(
    world: Worlds, default: Setting, changes: dict[str, Any], missing: str
) -> None:
    everywhere = fields(world(hosts=changes.get("hosts", 1)), default)
    assert set(everywhere) - set(fields(world(**changes), default)) == {missing}


@pytest.mark.parametrize("compression", ["fp16", "bf16", "own"])
def test_a_compression_that_was_chosen_stays(world: Worlds, default: Setting, compression: str) -> None:
    assert "compression" not in fields(world(), replace(default, compression=compression))


def test_one_rank_has_none(world: Worlds, default: Setting) -> None:
    assert offered(world(size=1), default) == ()


def test_thresholds_that_plan_alike_are_one(world: Worlds, default: Setting) -> None:
    """A model of 3 MB, in two buckets up to 1 MiB: what is as the default is named by it."""
    values = fields(world(plan=lambda threshold: threshold <= MIB), default)["fusion_threshold"]
    assert values == (256 * KIB, 8 * MIB)


def test_the_default_is_always_there(world: Worlds, default: Setting) -> None:
    odd = replace(default, fusion_threshold=3_000_000, chunk=100 * 64)
    found = fields(world(), odd)
    assert 3_000_000 in found["fusion_threshold"] and 6400 in found["chunk"]
    everything = list(settings(odd, offered(world(), odd)))
    assert odd in everything
    # With the thread, 11 thresholds; without it, one.
    assert len(everything) == len(set(everything)) == 6 * 2 * (11 + 1)


def test_a_threshold_matters_where_something_is_made_in_pieces(world: Worlds, default: Setting) -> None:
    def threshold(world: World, default: Setting) -> Knob | None:
        return next((knob for knob in offered(world, default) if knob.field == "fusion_threshold"), None)

    of_thread = threshold(world(), default)
    assert of_thread is not None and of_thread.needs == "thread"
    for pieces in (world(on_gpu=True), world(hosts=2), world(most_chunk=0)):
        always = threshold(pieces, default)
        assert always is not None and always.needs is None
    assert threshold(world(compiled=True), default) is None
    assert threshold(world(compiled=True), replace(default, thread=True)) is not None


def test_what_does_not_matter_is_as_the_default_has_it(world: Worlds, default: Setting) -> None:
    knobs = offered(world(), default)
    other = replace(default, fusion_threshold=MIB, chunk=32 * KIB)
    assert effective(other, default, knobs) == replace(default, chunk=32 * KIB)
    assert effective(replace(other, thread=True), default, knobs) == replace(other, thread=True)
    assert effective(other, default, offered(world(hosts=2), default)) == other


def test_chunks_fit(world: Worlds, default: Setting) -> None:
    assert fields(world(most_chunk=100 * KIB), replace(default, chunk=64 * KIB))["chunk"] == (32 * KIB, 64 * KIB)
