"""Who has been silent for too long: pure bookkeeping of a clock that stands still while nobody listens."""

from __future__ import annotations

# Looks at the silence within one limit, so that the end of it is noticed a tenth late at most.
_LOOKS = 10
_LONGEST_STEP_S = 1.0


class Pulse:
    """Follows ranks that are to be heard of again and again.

    A listener that was stopped, or waited for something else, has heard nothing in that time; that is not the silence
    of others. So of the time between two looks no more than two steps count.

    Args:
        limit_s: The silence after which a rank is given up.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.step_s = min(_LONGEST_STEP_S, limit_s / _LOOKS)
        self._clock_s = 0.0
        self._heard_s: dict[int, float] = {}

    def watch(self, rank: int) -> None:
        """From now on `rank` has to be heard of."""
        self._heard_s[rank] = self._clock_s

    def hear(self, rank: int) -> None:
        """Something came from `rank`; of one that is not watched, that says nothing."""
        if rank in self._heard_s:
            self._heard_s[rank] = self._clock_s

    def forget(self, rank: int) -> None:
        self._heard_s.pop(rank, None)

    def advance(self, elapsed_s: float) -> list[int]:
        """Time has passed, and all that came in it was told by `hear`; returns the ranks that are silent too long."""
        self._clock_s += min(elapsed_s, 2 * self.step_s)
        return [rank for rank, heard_s in self._heard_s.items() if self._clock_s - heard_s >= self.limit_s]
