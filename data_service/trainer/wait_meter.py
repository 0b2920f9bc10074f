"""The share of recent time that this process waited for data of one service. The caller reads clock and counters.

The window is the last `WINDOW_S`. A read that happens less often counts with its whole wait, so a short hitch at the
start of a pass weighs little. Time in which nothing is read and nothing is waited for, as in a long evaluation, does
not count as time without waiting: it says nothing about the service.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from dataclasses import dataclass

from tfdist.data_service.inspection.wait_report import INPUT, SERVICE

WINDOW_S = 20.0


@dataclass(frozen=True)
class Count:
    """What one watch has counted so far: elements, and seconds waited for them, including the current wait."""

    elements: int
    seconds: float


@dataclass(frozen=True)
class Sample:
    """All watches of a service at one moment, by name.

    Attributes:
        time_s: The moment, by a monotonic clock.
        at_input: Watches at the end of the input (`measure_wait`).
        at_service: Watches where elements leave the service.
    """

    time_s: float
    at_input: Mapping[str, Count]
    at_service: Mapping[str, Count]


class WaitMeter:
    """Turns samples into shares.

    Args:
        window_s: Length of the window in seconds; shares are reported once half of it has passed.
    """

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._samples: collections.deque[Sample] = collections.deque()

    def add(self, sample: Sample) -> tuple[float, str] | None:
        """Adds a sample.

        Returns:
            The share and where it was measured ("input" or "service"); None if too little is known, or if nothing was
            read and nothing was waited for.
        """
        samples = self._samples
        samples.append(sample)
        while len(samples) > 2 and sample.time_s - samples[1].time_s >= self._window_s:
            samples.popleft()
        first = samples[0]
        for place, before, after in (
            (INPUT, first.at_input, sample.at_input),
            (SERVICE, first.at_service, sample.at_service),
        ):
            elements, seconds = _growth(before, after)
            if elements or seconds > 0:
                passed_s = sample.time_s - first.time_s
                return (min(1.0, seconds / passed_s), place) if passed_s >= self._window_s / 2 else None
        samples.clear()
        samples.append(sample)
        return None


def _growth(before: Mapping[str, Count], after: Mapping[str, Count]) -> tuple[int, float]:
    nothing = Count(0, 0.0)
    elements = sum(count.elements - before.get(name, nothing).elements for name, count in after.items())
    seconds = sum(max(0.0, count.seconds - before.get(name, nothing).seconds) for name, count in after.items())
    return elements, seconds
