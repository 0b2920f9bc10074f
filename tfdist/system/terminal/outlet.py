"""One output of the launcher, whose reader may be slow or stand still: writing to it never holds up the caller.

What cannot be written at once is kept, and written by a thread. How much is kept is bounded by those who hand it over:
`on_done` says when a part has left. Once the job ends (`hurry`), what the reader does not take is dropped.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import os
import select
import stat
import struct
import termios
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

_STEP_S = 0.1


@dataclass
class _Part:
    """`size` is what its owner counts of it; the launcher's own words have no owner."""

    data: bytes
    owner: int | None
    size: int


class Outlet:
    """Safe to use from several threads.

    Args:
        descriptor: Where everything goes, in order.
        on_done: Takes (owner, size) of what has been written or dropped; from any thread.
        on_gone: Called once, from any thread, when nobody can read any more; from then on everything is dropped.
    """

    def __init__(
        self, descriptor: int, on_done: Callable[[int, int], None], on_gone: Callable[[], None] = lambda: None
    ) -> None:
        self._descriptor, self._own = _without_blocking(descriptor)
        self._is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        self._on_done, self._on_gone = on_done, on_gone
        self._changed = threading.Condition()
        self._waiting: collections.deque[_Part] = collections.deque()
        self._thread: threading.Thread | None = None
        self._patience_s: float | None = None
        self._moved_at, self._unread = 0.0, -1
        self._gone = self._drops = False
        # Of what was dropped because nobody read it, though somebody could.
        self.dropped_bytes = 0

    def put(self, data: bytes, owner: int | None = None, size: int = 0) -> None:
        """Writes `data`, now or later; then `on_done` is told its `size`."""
        with self._changed:
            part = _Part(data, owner, size)
            if self._drops:
                self.dropped_bytes += len(data)
            else:
                while not self._waiting and self._advance(part):
                    pass
                if part.data:
                    self._waiting.append(part)
                    self._start()
                    self._changed.notify_all()
                    return
        self._done(part)

    def hurry(self, patience_s: float) -> None:
        """From now on what the reader leaves untouched for that time is dropped, and so is all that follows."""
        with self._changed:
            if self._patience_s is None:
                self._moved_at = time.monotonic()
            self._patience_s = patience_s

    def calm(self) -> None:
        """Undoes `hurry`: the job goes on."""
        with self._changed:
            self._patience_s, self._drops = None, False

    def finish(self) -> None:
        """After `hurry`: waits until all is written or dropped. The last call."""
        with self._changed:
            assert self._patience_s is not None
            # The thread itself drops what is not taken, unless the kernel holds it in a write.
            while self._waiting and time.monotonic() - self._moved_at < self._patience_s + 10 * _STEP_S:
                self._changed.wait(_STEP_S)
        if self._own:
            os.close(self._descriptor)
            self._gone = True

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tfdistrun-output", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                part = self._waiting[0]
            while part.data and not self._drops:
                if self._advance(part):
                    self._moved_at = time.monotonic()
                else:
                    self._wait_for_reader()
            with self._changed:
                over = list(self._waiting) if self._drops else [part]
                self.dropped_bytes += sum(len(each.data) for each in over)
                for _ in over:
                    self._waiting.popleft()
                self._changed.notify_all()
            for each in over:
                self._done(each)

    def _advance(self, part: _Part) -> bool:
        """Writes what is taken now; whether that was anything."""
        if not part.data:
            return False
        if self._gone:
            part.data = b""
            return True
        try:
            taken = self._write(part.data)
        except BlockingIOError:
            return False
        except OSError:
            # The reader has gone, as in `tfdistrun ... | head`: training goes on without that stream.
            self._gone, part.data = True, b""
            self._on_gone()
            return True
        part.data = part.data[taken:]
        return True

    def _write(self, data: bytes) -> int:
        if self._own or self._is_file:
            return os.write(self._descriptor, data)
        if not select.select([], [self._descriptor], [], 0)[1]:
            raise BlockingIOError
        # A pipe that can be written takes that much without making the writer wait.
        return os.write(self._descriptor, data[: select.PIPE_BUF])

    def _wait_for_reader(self) -> None:
        select.select([], [self._descriptor], [], _STEP_S)
        unread = _unread(self._descriptor)
        with self._changed:
            if unread != self._unread:
                self._unread, self._moved_at = unread, time.monotonic()
            idle_s = time.monotonic() - self._moved_at
            self._drops = self._patience_s is not None and idle_s >= self._patience_s

    def _done(self, part: _Part) -> None:
        if part.owner is not None:
            self._on_done(part.owner, part.size)


def _without_blocking(descriptor: int) -> tuple[int, bool]:
    """The same pipe or terminal opened again, since a mode of the descriptor itself is that of others, too.

    Returns:
        A descriptor, and whether it is ours. Files never block, and of another user's nothing can be opened again.
    """
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISFIFO(mode) or os.isatty(descriptor):
        with contextlib.suppress(OSError):
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            return os.open(f"/proc/self/fd/{descriptor}", flags), True
    return descriptor, False


def _unread(descriptor: int) -> int:
    """What waits in a pipe: it can only be written again when a whole page of it has been read. -1 if unknown."""
    count = bytearray(4)
    try:
        fcntl.ioctl(descriptor, termios.FIONREAD, count)
    except OSError:
        return -1
    return int(struct.unpack("i", count)[0])
