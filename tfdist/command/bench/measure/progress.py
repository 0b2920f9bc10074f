"""Reports the progress of a measurement that takes a while."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

# Nothing is printed before this time, nor more often than this.
QUIET_S = 2.0


def _write(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class Progress:
    """Counts the parts of one measurement; on ranks other than 0, create it with `shown=False`.

    Args:
        title: What is measured.
        total: Number of parts.
        shown: Whether to print anything.
        write: Prints a line; by default to standard error, so that standard output contains only results.
        clock: Returns seconds.
    """

    def __init__(
        self,
        title: str,
        total: int,
        shown: bool = True,
        write: Callable[[str], None] = _write,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._title, self._total, self._shown = title, total, shown
        self._write, self._clock = write, clock
        self._start = self._last = clock()

    def done(self, parts: int) -> None:
        """Notes that this many parts are done."""
        now = self._clock()
        if not self._shown or now - self._last < QUIET_S or parts >= self._total:
            return
        self._last = now
        left = (now - self._start) / parts * (self._total - parts)
        self._write(f"  {self._title}: {parts} of {self._total}, about {left:.0f} s left")
