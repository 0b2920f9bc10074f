"""Finds the straggler, the rank that the others wait for, from how long each rank has waited."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Straggler:
    """The rank that waited least.

    Attributes:
        rank: Its number.
        seconds: How much longer the others waited than it did, on average: the time saved if it were as fast as they
            are.
    """

    rank: int
    seconds: float


def find(waits: Sequence[float]) -> Straggler:
    """The rank that came last more often, or by more, than the others.

    A straggler makes the others wait and does not wait itself. Ranks that take turns being late wait equally long, so
    `seconds` is near 0, however long they waited.

    Args:
        waits: Seconds that each rank waited for the others, by rank; at least one.
    """
    rank = min(range(len(waits)), key=lambda r: waits[r])
    others = [wait for r, wait in enumerate(waits) if r != rank]
    mean = sum(others) / len(others) if others else waits[rank]
    return Straggler(rank, mean - waits[rank])
