"""Tracks which ranks have been silent for too long, with a clock that stops while nobody listens."""

from __future__ import annotations

# How often silence is checked within one limit, so that it is detected at most a tenth late.
_LOOKS = 10
_LONGEST_STEP_S = 1.0


class Pulse:
    """Tracks ranks that must be heard from regularly.

    If the listener was stopped, or waited for something else, it heard nothing in that time, but the ranks were not
    silent. So at most two steps of the time between two checks count.

    Args:
        limit_s: The silence after which a rank counts as lost.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.step_s = min(_LONGEST_STEP_S, limit_s / _LOOKS)
        self._clock_s = 0.0
        self._heard_s: dict[int, float] = {}

    def watch(self, rank: int) -> None:
        """From now on `rank` must be heard from."""
        self._heard_s[rank] = self._clock_s

    def hear(self, rank: int) -> None:
        """Something arrived from `rank`; ignored if it is not watched."""
        if rank in self._heard_s:
            self._heard_s[rank] = self._clock_s

    def forget(self, rank: int) -> None:
        self._heard_s.pop(rank, None)

    def advance(self, elapsed_s: float) -> list[int]:
        """Advances the clock, after `hear` was called for all that arrived; returns the ranks silent for too long."""
        self._clock_s += min(elapsed_s, 2 * self.step_s)
        return [rank for rank, heard_s in self._heard_s.items() if self._clock_s - heard_s >= self.limit_s]
