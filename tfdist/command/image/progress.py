"""Lines that tell how much of an image has been moved, once that has lasted for a while. It moves nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

# Nothing is said about what is over sooner, and then not more often than this.
QUIET_S = 2.0
_MIB = 1 << 20


def say(line: str) -> None:
    """To standard error, so that standard output has results only."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def mebibytes(size: int) -> str:
    """Bytes, for people."""
    return f"{size / _MIB:,.0f} MiB"


class Progress:
    """Tells of one movement. `write` takes a line, `clock` gives seconds."""

    def __init__(
        self, title: str, write: Callable[[str], object] = say, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._title, self._write, self._clock = title, write, clock
        self._last = clock()

    def at(self, moved: int, total: int) -> None:
        """So many bytes of so many, which may grow."""
        now = self._clock()
        if now - self._last >= QUIET_S:
            self._last = now
            self._write(f"  {self._title}: {mebibytes(moved)} of {mebibytes(total)}")
