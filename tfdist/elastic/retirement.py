"""Makes a rank that gets SIGTERM leave at its next commit, so that none of its work is lost."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

_told: list[int] = []
_forking = threading.local()


def is_due() -> bool:
    """Whether this rank was told to end."""
    return bool(_told)


@contextlib.contextmanager
def at_next_commit() -> Iterator[None]:
    """Delays SIGTERM until a commit; a second one ends the process at once, as SIGTERM does without a pending commit.

    A handler set by the script stays. Outside the main thread, which alone may set handlers, SIGTERM ends the process
    as usual.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    signal.signal(signal.SIGTERM, _note)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is _note:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if _told:
        _die()


def _note(signum: int, _: object) -> None:
    if _told:
        _die()
    _told.append(signum)


def _hold() -> None:
    """Blocks SIGTERM while this thread forks: Python loses signals that reach a process that was just forked."""
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _release() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _release_forked() -> None:
    """A forked process makes no commit: SIGTERM ends it."""
    if signal.getsignal(signal.SIGTERM) is _note:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _release()


def _die() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_release_forked)
