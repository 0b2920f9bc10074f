"""The settings that can be tuned, and in which worlds each of them matters."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Any

KIB = 1 << 10
MIB = 1 << 20

FUSION_THRESHOLDS = tuple(256 * KIB << power for power in range(10))  # 256 KiB to 128 MiB
CHUNKS = tuple(32 * KIB << power for power in range(5))  # 32 KiB to 512 KiB
# Shared memory per rank while tuning, in bytes: room for eight of the largest chunks.
SHARED_CHUNKS = 8
SHARED_BYTES = SHARED_CHUNKS * CHUNKS[-1]


@dataclass(frozen=True)
class Setting:
    """One way to run the collectives of a step.

    Attributes:
        fusion_threshold: Bytes of gradients fused into one all-reduce.
        chunk: Bytes that a rank shares with its host at a time; 0 if ranks share no memory.
        compression: One of `config.COMPRESSIONS`, or "own" for a user-defined compression.
        thread: Whether a separate thread reduces gradients during the step, on the CPU.
        hierarchy: How GPUs of several hosts reduce: "off", "nccl" or "mpi".
    """

    fusion_threshold: int
    chunk: int
    compression: str
    thread: bool
    hierarchy: str


@dataclass(frozen=True)
class Knob:
    """A field of `Setting`, and two or more values that differ in effect, in ascending order.

    Attributes:
        field: The field.
        values: Its values.
        needs: A field that must be true for this one to matter; None if it always matters.
    """

    field: str
    values: tuple[Any, ...]
    needs: str | None = None


@dataclass(frozen=True)
class World:
    """The properties of a world that determine its knobs.

    Attributes:
        size: Number of ranks.
        hosts: Number of hosts.
        on_gpu: Whether collectives run on GPUs.
        compiled: Whether XLA compiles the step.
        most_chunk: The largest chunk in bytes; 0 if ranks share no memory.
        lossy: Whether gradients may be rounded to 16 bits.
        plan: The buckets of gradients for a fusion threshold; None if something else groups them.
    """

    size: int
    hosts: int
    on_gpu: bool
    compiled: bool
    most_chunk: int
    lossy: bool
    plan: Callable[[int], Hashable] | None


def offered(world: World, default: Setting) -> tuple[Knob, ...]:
    """The knobs of a world, without values that make no difference there, but always with the default's values."""
    if world.size == 1:
        return ()
    knobs = []
    for field, choices in _choices(world, default).items():
        values = tuple(sorted({*choices, getattr(default, field)}))
        if len(values) > 1:
            knobs.append(Knob(field, values, _need(world, field)))
    return tuple(knobs)


def settings(default: Setting, knobs: tuple[Knob, ...]) -> Iterator[Setting]:
    """All distinct settings of the knobs."""
    seen = set()
    for values in itertools.product(*(knob.values for knob in knobs)):
        fields = {knob.field: value for knob, value in zip(knobs, values, strict=True)}
        setting = effective(replace(default, **fields), default, knobs)
        if setting not in seen:
            seen.add(setting)
            yield setting


def effective(setting: Setting, default: Setting, knobs: tuple[Knob, ...]) -> Setting:
    """The same setting, with the default's value in each field that does not matter."""
    idle = [knob.field for knob in knobs if knob.needs is not None and not getattr(setting, knob.needs)]
    return replace(setting, **{field: getattr(default, field) for field in idle})


def _packs(world: World) -> bool:
    """Whether the engine splits what is reduced in one call: unless everything goes through shared memory."""
    return world.hosts > 1 or not world.most_chunk


def _need(world: World, field: str) -> str | None:
    """On a single CPU host, the threshold only matters for reductions in a separate thread."""
    return "thread" if field == "fusion_threshold" and not (world.on_gpu or _packs(world)) else None


def _choices(world: World, default: Setting) -> dict[str, list[Any]]:
    """The candidate values of each field."""
    lossy = world.lossy and default.compression == "none"
    by_hosts = world.on_gpu and 1 < world.hosts < world.size
    threads = not (world.on_gpu or world.compiled)
    in_pieces = world.on_gpu or threads or default.thread or _packs(world)
    return {
        "fusion_threshold": _thresholds(world, default) if in_pieces else [],
        "chunk": [] if world.on_gpu else [chunk for chunk in CHUNKS if chunk <= world.most_chunk],
        "compression": ["fp16"] if lossy else [],
        "thread": [False, True] if threads else [],
        # The engine was started for one of the two kinds.
        "hierarchy": ["off", "mpi" if default.hierarchy == "mpi" else "nccl"] if by_hosts else [],
    }


def _thresholds(world: World, default: Setting) -> list[int]:
    return [] if world.plan is None else _distinct(world.plan, default.fusion_threshold)


def _distinct(plan: Callable[[int], Hashable], default: int) -> list[int]:
    """The default, and one threshold for each different plan."""
    thresholds = {plan(default): default}
    for threshold in FUSION_THRESHOLDS:
        thresholds.setdefault(plan(threshold), threshold)
    return list(thresholds.values())
