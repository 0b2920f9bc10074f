"""Writes files in a thread, one after the other, so that training does not wait for a disk. Knows nothing of the files.

A write that is asked for while another is under way waits for it; where a third comes, it takes the place of the
second. So the newest is always written, training never waits, and no more than two are held in memory.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable

from tfdist import config

# After which a wait is told of.
PATIENCE_S = 2.0

_logger = logging.getLogger("tfdist")
_busy: set[Writer] = set()


class Writer:
    """The writes to one place. Any thread may call it.

    Args:
        what: Names them in messages, as in "backups to FOLDER".
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._next: Callable[[], None] | None = None
        self._running = False
        self._changed = threading.Condition()

    def put(self, write: Callable[[], None]) -> bool:
        """Has `write` called in the thread, when the one before has ended. It must not raise.

        Returns:
            Whether it took the place of one that had not begun, which will not be called.
        """
        with self._changed:
            replaced = self._next is not None
            self._next = write
            if self._running:
                return replaced
            self._running = True
        _busy.add(self)
        # What was registered last is called first, so before MPI ends, which other ranks may wait for.
        atexit.unregister(wait_for_all)
        atexit.register(wait_for_all)
        try:
            # A daemon: the interpreter would wait for another kind without a deadline.
            threading.Thread(target=self._run, name="tfdist writer", daemon=True).start()
        except RuntimeError:  # there can be no more threads
            self._run()
        return replaced

    def drop(self) -> None:
        """Leaves out the write that has not begun."""
        with self._changed:
            self._next = None

    def wait(self) -> bool:
        """Waits until all is written, at most `TFDIST_STALL_CHECK_SHUTDOWN_TIME`; returns whether it is."""
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
            "%s are still being written after %g s, and are not waited for any longer. Look after the disk; "
            "what is not whole by then is not seen.",
            self._what,
            limit,
        )
        return False

    def _is_idle(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._running, seconds)

    def _run(self) -> None:
        try:
            while write := self._take():
                write()
                del write  # and with it what it has written
        except BaseException:
            self._stop()  # so that nobody waits for it
            raise

    def _take(self) -> Callable[[], None] | None:
        with self._changed:
            write, self._next = self._next, None
            if write is None:
                self._stop()
            return write

    def _stop(self) -> None:
        with self._changed:
            self._running = False
            _busy.discard(self)
            self._changed.notify_all()


# A process that this one forks has no such thread, and would wait for it in vain.
os.register_at_fork(after_in_child=_busy.clear)


def wait_for_all() -> None:
    """Waits for the writes of this process, each as `Writer.wait` does. Called when the interpreter exits too."""
    for writer in list(_busy):
        writer.wait()
