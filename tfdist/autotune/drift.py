"""Detects when step times have changed permanently. Uses no clock."""

from __future__ import annotations

import statistics
from collections import deque

WINDOW = 8
# A change counts only if it exceeds both: this fraction, and this many deviations.
LEAST_CHANGE = 0.2
DEVIATIONS = 5.0


class Drift:
    """Compares the medians of the newest and the first times, so that single slow steps do not matter.

    Args:
        window: Times on each side.
    """

    def __init__(self, window: int = WINDOW) -> None:
        self._first: list[float] = []
        self._newest: deque[float] = deque(maxlen=window)
        self._window = window

    def add(self, seconds: float) -> bool:
        """Adds a time; returns whether the newest ones differ from the first."""
        if len(self._first) < self._window:
            self._first.append(seconds)
            return False
        self._newest.append(seconds)
        if len(self._newest) < self._window:
            return False
        before = statistics.median(self._first)
        deviation = 1.4826 * statistics.median(abs(each - before) for each in self._first)
        change = abs(statistics.median(self._newest) - before)
        return change > max(LEAST_CHANGE * before, DEVIATIONS * deviation)
