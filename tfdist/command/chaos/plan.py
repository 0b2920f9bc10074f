"""Plans which fault happens when, and to which rank; the same for the same seed."""

from __future__ import annotations

import random
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from tfdist.errors import ConfigError

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|)")
# Name of a fault -> the signal that causes it.
KINDS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "end": signal.SIGTERM}


def seconds(text: str) -> float:
    """Parses "30s", "500ms", "2m", "1h" or "30". Raises ConfigError."""
    found = _DURATION.fullmatch(text)
    if found is None or float(found[1]) == 0:
        raise ConfigError(f"{text!r} is not a time; expected more than 0, such as 500ms, 30s, 2m or 1h")
    return float(found[1]) * _UNITS[found[2]]


@dataclass(frozen=True)
class Fault:
    """A kind of fault and when it happens next, in seconds from the job's start."""

    kind: str
    at: float


class Plan:
    """Repeated faults of several kinds.

    Args:
        every: Seconds between two faults of the same kind, by kind.
        most: Total number of faults; None for no limit.
        seed: Chooses the victims.
    """

    def __init__(self, every: dict[str, float], most: int | None, seed: int) -> None:
        self._every, self._left = every, most
        self._next = dict(every)
        self._random = random.Random(seed)

    @property
    def next(self) -> Fault | None:
        """The next fault; None if there are no more."""
        if self._left == 0:
            return None
        kind = min(self._next, key=lambda each: self._next[each])
        return Fault(kind, self._next[kind])

    def do(self, fault: Fault, ranks: Sequence[int]) -> int | None:
        """Records that a fault is due, and returns the rank it hits; None if there is no rank."""
        self._next[fault.kind] += self._every[fault.kind]
        if not ranks:
            return None
        if self._left is not None:
            self._left -= 1
        return self._random.choice(sorted(ranks))
