"""The phases of autotuning: explore, compare, keep, watch. Takes step times, and returns what to measure next."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

from tfdist.autotune.drift import Drift
from tfdist.autotune.search import Verdict, compare, explore, finalists
from tfdist.native.knobs import Knob, Setting

EXPLORE = "explore"
COMPARE = "compare"
WATCH = "watch"
DONE = "done"
# How many times a drift of step times may restart the search.
MOST_AGAIN = 2

_Outcome = TypeVar("_Outcome")


@dataclass(frozen=True)
class Order:
    """What every rank does next: measure steps with a setting, or in `DONE` keep it and stop measuring."""

    phase: str
    setting: Setting


class Tuner:
    """Decides what to measure, and keeps the best setting.

    Args:
        default: The setting to start with, and to beat.
        knobs: What may be changed; if empty, tuning is done immediately.
        samples: The most settings to explore.
        start: A setting found by an earlier job, watched without a search; None searches.
        on_verdict: Called with the outcome of each comparison.

    Attributes:
        order: What to measure now.

    Example:

    ```python
    tuner = Tuner(default, knobs, samples=20)
    while tuner.order.phase != DONE:
        tuner.tell(measure(tuner.order.setting))
    ```
    """

    def __init__(
        self,
        default: Setting,
        knobs: tuple[Knob, ...],
        samples: int,
        start: Setting | None = None,
        on_verdict: Callable[[Verdict], object] = lambda verdict: None,
    ) -> None:
        self._default = default
        self._knobs = knobs
        self._samples = samples
        self._on_verdict = on_verdict
        self._course = self._run(start)
        self.order = next(self._course)

    def tell(self, seconds: float) -> Order:
        """Takes the step time of the current order; returns the next order."""
        self.order = self._course.send(seconds)
        return self.order

    def _run(self, kept: Setting | None) -> Generator[Order, float, None]:
        again = 0
        while self._knobs:
            if kept is None:
                kept = yield from self._search()
            if again == MOST_AGAIN:
                break
            drift = Drift()
            while not drift.add((yield Order(WATCH, kept))):
                pass
            again += 1
            kept = None
        while True:
            yield Order(DONE, kept or self._default)

    def _search(self) -> Generator[Order, float, Setting]:
        seconds = yield from _ordered(EXPLORE, explore(self._default, self._knobs, self._samples))
        rivals = finalists(seconds, self._default)
        verdict = yield from _ordered(COMPARE, compare(self._default, rivals))
        self._on_verdict(verdict)
        return verdict.kept.setting


def _ordered(phase: str, settings: Generator[Setting, float, _Outcome]) -> Generator[Order, float, _Outcome]:
    """Wraps settings as orders of a phase."""
    setting = next(settings)
    while True:
        try:
            setting = settings.send((yield Order(phase, setting)))
        except StopIteration as end:
            outcome: _Outcome = end.value
            return outcome
