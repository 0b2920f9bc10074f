"""One output of the launcher, whose reader may be slow or stopped: writing to it never blocks the caller.

What cannot be written at once is queued, and written by a thread. The callers bound the size of the queue: `on_done`
reports when a part has been written. Once the job ends (`hurry`), what the reader does not read is dropped.
"""

from __future__ import annotations

import collections
import contextlib
import errno
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

from tfdist.system.terminal.readiness import writable

_STEP_S = 0.1
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass
class _Part:
    """`size` is reported to its owner; the launcher's own messages have no owner."""

    data: bytes
    owner: int | None
    size: int


class Outlet:
    """Thread-safe.

    Args:
        descriptor: Where everything is written, in order.
        on_done: Called with (owner, size) of what was written or dropped; from any thread.
        on_gone: Called once, from any thread, when the reader is gone; from then on everything is dropped.
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
        # Bytes that were dropped because the reader existed but did not read them.
        self.dropped_bytes = 0
        # Bytes that a full disk did not take, and how the system says that.
        self.unwritten_bytes, self.obstacle = 0, ""

    def put(self, data: bytes, owner: int | None = None, size: int = 0) -> None:
        """Writes `data`, now or later; then calls `on_done` with its `size`."""
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
        """From now on, drops what the reader has not read within this time, and everything after it."""
        with self._changed:
            if self._patience_s is None:
                self._moved_at = time.monotonic()
            self._patience_s = patience_s

    def calm(self) -> None:
        """Undoes `hurry`: the job continues."""
        with self._changed:
            self._patience_s, self._drops = None, False

    def finish(self) -> None:
        """After `hurry`: waits until everything is written or dropped. The last call."""
        with self._changed:
            assert self._patience_s is not None
            # The thread itself drops what is not read, unless the kernel blocks it in a write.
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
        """Writes as much as possible now; returns whether that was anything."""
        if not part.data:
            return False
        if self._gone:
            part.data = b""
            return True
        try:
            taken = self._write(part.data)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno in _FULL:  # there may be room for the next part
                self.unwritten_bytes += len(part.data)
                self.obstacle, part.data = os.strerror(error.errno), b""
                return True
            # The reader is gone, as in `tfdistrun ... | head`: training continues without that stream.
            self._gone, part.data = True, b""
            self._on_gone()
            return True
        part.data = part.data[taken:]
        return True

    def _write(self, data: bytes) -> int:
        if self._own or self._is_file:
            return os.write(self._descriptor, data)
        if not writable(self._descriptor):
            raise BlockingIOError
        # A pipe that is ready accepts this much without blocking the writer.
        return os.write(self._descriptor, data[: select.PIPE_BUF])

    def _wait_for_reader(self) -> None:
        writable(self._descriptor, _STEP_S)
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
    """Opens the same pipe or terminal again, because changing the mode of the descriptor would affect other processes.

    Returns:
        A descriptor, and whether it is ours. Files never block, and those of another user cannot be opened again.
    """
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISFIFO(mode) or os.isatty(descriptor):
        with contextlib.suppress(OSError):
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            return os.open(f"/proc/self/fd/{descriptor}", flags), True
    return descriptor, False


def _unread(descriptor: int) -> int:
    """The unread bytes in a pipe, which can be written again only when a whole page has been read. -1 if unknown."""
    count = bytearray(4)
    try:
        fcntl.ioctl(descriptor, termios.FIONREAD, count)
    except OSError:
        return -1
    return int(struct.unpack("i", count)[0])
