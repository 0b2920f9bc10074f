"""Writes files one by one in a background thread, so training does not wait for the disk. Independent of the files.

A write requested while another is running waits for it; a third one replaces the second. So the newest is always
written, training never waits, and at most two are held in memory.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable

from tfdist import config

# Seconds after which a wait is logged.
PATIENCE_S = 2.0
_LOOK_S = 0.1

_logger = logging.getLogger("tfdist")
_busy: set[Writer] = set()


class Writer:
    """A queue of writes to one place. Thread-safe.

    Args:
        what: Describes them in messages, as in "backups to FOLDER".
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._next: Callable[[], None] | None = None
        self._running = False
        self._changed = threading.Condition()

    def put(self, write: Callable[[], None]) -> bool:
        """Schedules `write`, which must not raise, to run in the thread after the current one.

        Returns:
            Whether it replaced a pending one, which will then not be called.
        """
        with self._changed:
            replaced = self._next is not None
            self._next = write
            if self._running:
                return replaced
            self._running = True
        _busy.add(self)
        # Handlers run in reverse order: this one before MPI shuts down, for which other ranks may be waiting.
        atexit.unregister(wait_for_all)
        atexit.register(wait_for_all)
        try:
            # A daemon thread: the interpreter would wait for any other without a deadline.
            threading.Thread(target=self._run, name="tfdist writer", daemon=True).start()
        except RuntimeError:  # no more threads can be started
            self._run()
        return replaced

    def drop(self) -> None:
        """Drops the pending write."""
        with self._changed:
            self._next = None

    def wait(self) -> bool:
        """Waits until everything is written, at most `TFDIST_STALL_CHECK_SHUTDOWN_TIME`; returns whether it is."""
        limit = config.read().stall_shutdown_seconds
        patience = min(PATIENCE_S, limit)
        if self._is_idle(patience):
            return True
        _logger.warning(
            "waiting for %s to be written, at most %g s (TFDIST_STALL_CHECK_SHUTDOWN_TIME)", self._what, limit
        )
        if self._is_idle(limit - patience):
            return True
        _logger.error(
            "%s are still being written after %g s; no longer waiting for them. Check the disk. Files that are "
            "incomplete when the process exits are ignored.",
            self._what,
            limit,
        )
        return False

    def wait_for_room(self, is_vain: Callable[[], bool]) -> bool:
        """Waits until another write would replace none, at most half of that time, or until `is_vain` says so.

        Returns:
            Whether it would replace none.
        """
        until = time.monotonic() + config.read().stall_shutdown_seconds / 2
        with self._changed:
            while self._next is not None and time.monotonic() < until and not is_vain():
                self._changed.wait(_LOOK_S)
            return self._next is None

    def _is_idle(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._running, seconds)

    def _run(self) -> None:
        try:
            while write := self._take():
                write()
                del write  # frees the data it holds
        except BaseException:
            self._stop()  # so that no thread waits for it
            raise

    def _take(self) -> Callable[[], None] | None:
        with self._changed:
            write, self._next = self._next, None
            self._changed.notify_all()
            if write is None:
                self._stop()
            return write

    def _stop(self) -> None:
        with self._changed:
            self._running = False
            _busy.discard(self)
            self._changed.notify_all()


# A forked process does not have the thread, and would wait for it until the deadline.
os.register_at_fork(after_in_child=_busy.clear)


def wait_for_all() -> None:
    """Waits for all writers of this process, as `Writer.wait` does. Also called when the interpreter exits."""
    for writer in list(_busy):
        writer.wait()
