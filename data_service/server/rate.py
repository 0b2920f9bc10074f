"""How fast counters grow: their recent samples and their rates per second. No clock and no thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping


class RateWindow:
    """The samples of the last seconds.

    Args:
        length_s: Seconds that the rates cover; fewer at the start.
        spacing_s: Minimum seconds between two kept samples.
    """

    def __init__(self, length_s: float, spacing_s: float) -> None:
        self._length_s, self._spacing_s = length_s, spacing_s
        self._samples: deque[tuple[float, Mapping[str, float]]] = deque()

    def due(self, now_s: float) -> bool:
        """Whether the next sample is due."""
        return not self._samples or now_s - self._samples[-1][0] >= self._spacing_s

    def add(self, now_s: float, counters: Mapping[str, float]) -> None:
        """Adds a sample and drops those outside the window."""
        self._samples.append((now_s, dict(counters)))
        while len(self._samples) > 2 and now_s - self._samples[1][0] >= self._length_s:
            self._samples.popleft()

    def per_second(self, name: str) -> float:
        """The growth of a counter per second; 0 before there are two samples."""
        if len(self._samples) < 2:
            return 0.0
        (start_s, first), (end_s, last) = self._samples[0], self._samples[-1]
        return (last[name] - first[name]) / (end_s - start_s)

    def mean(self, name: str) -> float:
        """The mean of a gauge; 0 before there is a sample."""
        found = [sample[name] for _, sample in self._samples]
        return sum(found) / len(found) if found else 0.0
