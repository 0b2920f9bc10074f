"""The output of the servers on standard error, whose reader must never block the supervisor."""

from __future__ import annotations

import threading

from tfdist.system.terminal.outlet import Outlet

# What may wait for the reader; further lines are dropped, and counted.
LIMIT_BYTES = 1 << 20
_READER_S = 1.0


class Log:
    """Writes lines without blocking. Thread-safe.

    Args:
        descriptor: Where the lines go.
    """

    def __init__(self, descriptor: int = 2) -> None:
        self._lock = threading.Lock()
        self._waiting_bytes = self._dropped = 0
        self._outlet = Outlet(descriptor, self._done)

    def show(self, line: str) -> None:
        """Writes a line, now or when there is room; drops it if too much is waiting or nobody reads."""
        with self._lock:
            if self._waiting_bytes > LIMIT_BYTES:
                self._dropped += 1
                return
            missed = (
                f"[data-service] {self._dropped} lines were dropped because nobody read them\n" if self._dropped else ""
            )
            data = (missed + line + "\n").encode(errors="replace")
            self._dropped = 0
            self._waiting_bytes += len(data)
        self._outlet.put(data, 0, len(data))

    def close(self) -> None:
        """Waits briefly for the reader. Must be the last call."""
        self._outlet.hurry(_READER_S)
        self._outlet.finish()

    def _done(self, _: int, size: int) -> None:
        with self._lock:
            self._waiting_bytes -= size
