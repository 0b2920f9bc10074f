"""Finds out how this process is exiting, before its exit status is visible to others.

Python passes `SystemExit` to no hook. Whether the script has finished shows in its outermost frame: its last
instruction is a return, unless an exception has left it. The status is known for `sys.exit`: the exception it raises is
released while the script still runs if it was caught, and after the script if not.
"""

from __future__ import annotations

import functools
import opcode
import sys
import threading
import weakref
from types import FrameType, TracebackType
from typing import Any, NoReturn

_hooked: list[bool] = []
_beginning: list[FrameType] = []  # the outermost frame of the main thread
_statuses: list[int] = []  # of exits that nothing caught
_alive: set[Any] = set()  # references to exits that may still be caught


class _Exit(SystemExit):
    """A `SystemExit` that supports weak references; its name is that of its base in messages and tracebacks."""

    def __reduce__(self) -> tuple[Any, ...]:
        return SystemExit, self.args


_Exit.__module__, _Exit.__name__, _Exit.__qualname__ = SystemExit.__module__, "SystemExit", "SystemExit"


def watch() -> None:
    """Starts observing; a second call does nothing."""
    if _hooked:
        return
    _hooked.append(True)
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    if frame is not None:
        _beginning.append(frame)
    excepthook, exit_ = sys.excepthook, sys.exit

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Any:
        if _has_left():  # otherwise the script itself calls the hook, to show what it has caught
            _statuses.append(1)
        return excepthook(kind, error, trace)

    @functools.wraps(exit_)  # the name by which it is pickled, too
    def leave(status: Any = None) -> NoReturn:
        try:
            exit_(status)
        except SystemExit as error:
            arguments = error.args
        raise _noted(_Exit(*arguments))

    sys.excepthook = show
    sys.exit = leave


def status() -> int | None:
    """The exit status of this process, called while it exits; None if it is not known yet.

    That is the case for a `SystemExit` that was not raised by `sys.exit`.
    """
    if not _beginning or _returned(_beginning[0]):
        return 0
    return _statuses[-1] if _statuses else None


def _noted(error: _Exit) -> _Exit:
    if threading.current_thread() is threading.main_thread():  # in other threads it only ends the thread
        code = error.code
        number = 0 if code is None else code & 0xFF if isinstance(code, int) else 1

        def gone(reference: Any) -> None:
            _alive.discard(reference)
            if _has_left():
                _statuses.append(number)

        _alive.add(weakref.ref(error, gone))
    return error


def _has_left() -> bool:
    """Whether the script, called from its outermost frame, is no longer running in this thread, the main one."""
    if threading.current_thread() is not threading.main_thread():
        return False
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame in _beginning:
            return False
        frame = frame.f_back
    return True


def _returned(frame: FrameType) -> bool:
    return frame.f_lasti >= 0 and opcode.opname[frame.f_code.co_code[frame.f_lasti]].startswith("RETURN")
