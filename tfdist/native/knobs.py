"""What can be tuned, and in which worlds. Knows no measurement and changes nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Any

KIB = 1 << 10
MIB = 1 << 20

FUSION_THRESHOLDS = tuple(256 * KIB << power for power in range(10))  # 256 KiB to 128 MiB
CHUNKS = tuple(32 * KIB << power for power in range(5))  # 32 KiB to 512 KiB
# What a rank shares with its host while it is tuned, in bytes: room for the largest chunk, of which there are eight.
SHARED_CHUNKS = 8
SHARED_BYTES = SHARED_CHUNKS * CHUNKS[-1]


@dataclass(frozen=True)
class Setting:
    """One way to run the collectives of a step.

    Attributes:
        fusion_threshold: Bytes of gradients that are reduced in one piece.
        chunk: Bytes that a rank shows its host at a time; 0 where ranks share no memory.
        compression: One of `config.COMPRESSIONS`; "own" for a compression of the user's own.
        thread: Whether gradients are reduced in a thread beside the rest of the step, on the CPU.
        hierarchy: How GPUs of several hosts reduce: "off", "nccl" or "mpi".
    """

    fusion_threshold: int
    chunk: int
    compression: str
    thread: bool
    hierarchy: str


@dataclass(frozen=True)
class Knob:
    """A field of `Setting`, and two or more values that make a difference, in ascending order.

    Attributes:
        field: The field.
        values: Its values.
        needs: A field that must be true for this one to matter; None where it always matters.
    """

    field: str
    values: tuple[Any, ...]
    needs: str | None = None


@dataclass(frozen=True)
class World:
    """What decides which knobs there are.

    Attributes:
        size: Number of ranks.
        hosts: Number of hosts.
        on_gpu: Whether collectives run on GPUs.
        compiled: Whether XLA compiles the step.
        most_chunk: The largest chunk in bytes; 0 where ranks share no memory.
        lossy: Whether gradients may be rounded to 16 bits.
        plan: The buckets that a fusion threshold makes of the gradients; None where something else groups them.
    """

    size: int
    hosts: int
    on_gpu: bool
    compiled: bool
    most_chunk: int
    lossy: bool
    plan: Callable[[int], Hashable] | None


def offered(world: World, default: Setting) -> tuple[Knob, ...]:
    """The knobs of a world. Values that make no difference there are left out, and the default's are always in."""
    if world.size == 1:
        return ()
    knobs = []
    for field, choices in _choices(world, default).items():
        values = tuple(sorted({*choices, getattr(default, field)}))
        if len(values) > 1:
            knobs.append(Knob(field, values, _need(world, field)))
    return tuple(knobs)


def settings(default: Setting, knobs: tuple[Knob, ...]) -> Iterator[Setting]:
    """All that the knobs can be set to, each once."""
    seen = set()
    for values in itertools.product(*(knob.values for knob in knobs)):
        fields = {knob.field: value for knob, value in zip(knobs, values, strict=True)}
        setting = effective(replace(default, **fields), default, knobs)
        if setting not in seen:
            seen.add(setting)
            yield setting


def effective(setting: Setting, default: Setting, knobs: tuple[Knob, ...]) -> Setting:
    """The same setting, with the default's value in each field that does not matter in it."""
    idle = [knob.field for knob in knobs if knob.needs is not None and not getattr(setting, knob.needs)]
    return replace(setting, **{field: getattr(default, field) for field in idle})


def _packs(world: World) -> bool:
    """Whether the engine makes pieces of what is reduced in one call: where not all goes through shared memory."""
    return world.hosts > 1 or not world.most_chunk


def _need(world: World, field: str) -> str | None:
    """On one host of CPUs only the reductions of a thread are in pieces that a threshold bounds."""
    return "thread" if field == "fusion_threshold" and not (world.on_gpu or _packs(world)) else None


def _choices(world: World, default: Setting) -> dict[str, list[Any]]:
    """What each field may be, beside what it is."""
    lossy = world.lossy and default.compression == "none"
    by_hosts = world.on_gpu and 1 < world.hosts < world.size
    threads = not (world.on_gpu or world.compiled)
    in_pieces = world.on_gpu or threads or default.thread or _packs(world)
    return {
        "fusion_threshold": _thresholds(world, default) if in_pieces else [],
        "chunk": [] if world.on_gpu else [chunk for chunk in CHUNKS if chunk <= world.most_chunk],
        "compression": ["fp16"] if lossy else [],
        "thread": [False, True] if threads else [],
        # The engine was started with one of the two kinds.
        "hierarchy": ["off", "mpi" if default.hierarchy == "mpi" else "nccl"] if by_hosts else [],
    }


def _thresholds(world: World, default: Setting) -> list[int]:
    return [] if world.plan is None else _distinct(world.plan, default.fusion_threshold)


def _distinct(plan: Callable[[int], Hashable], default: int) -> list[int]:
    """The default, and one threshold for each other plan that there is."""
    thresholds = {plan(default): default}
    for threshold in FUSION_THRESHOLDS:
        thresholds.setdefault(plan(threshold), threshold)
    return list(thresholds.values())
