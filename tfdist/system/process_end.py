"""How this process ends, found out before its exit status is known to others. Ends nothing.

Python shows `SystemExit` to no hook. Whether the script has come to its end shows at the frame that it began with: its
last instruction is a return, unless an exception has left it. With which status it was left is known of `sys.exit`: the
exception that it raises is let go of while the script still runs where it was caught, and after it where not.
"""

from __future__ import annotations

import opcode
import sys
import threading
import weakref
from types import FrameType, TracebackType
from typing import Any, NoReturn

_hooked: list[bool] = []
_beginning: list[FrameType] = []  # where the main thread began
_statuses: list[int] = []  # of exits that nothing has caught
_alive: set[Any] = set()  # references to exits that may be caught yet


class _Exit(SystemExit):
    """A `SystemExit` that one can hold a weak reference to. To others it is what it stands for."""

    def __reduce__(self) -> tuple[Any, ...]:
        return SystemExit, self.args


def watch() -> None:
    """Looks from now on; a second call does nothing."""
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
        if _has_left():  # else the script itself calls the hook, to show what it has caught
            _statuses.append(1)
        return excepthook(kind, error, trace)

    def leave(status: Any = None) -> NoReturn:
        try:
            exit_(status)
        except SystemExit as error:
            arguments = error.args
        raise _noted(_Exit(*arguments))

    sys.excepthook = show
    sys.exit = leave


def status() -> int | None:
    """The exit status of this process, asked when it exits; None where only the exit itself will show it.

    That is so of a `SystemExit` that was not raised by `sys.exit`.
    """
    if not _beginning or _returned(_beginning[0]):
        return 0
    return _statuses[-1] if _statuses else None


def _noted(error: _Exit) -> _Exit:
    if threading.current_thread() is threading.main_thread():  # elsewhere it ends the thread alone
        code = error.code
        number = 0 if code is None else code & 0xFF if isinstance(code, int) else 1

        def gone(reference: Any) -> None:
            _alive.discard(reference)
            if _has_left():
                _statuses.append(number)

        _alive.add(weakref.ref(error, gone))
    return error


def _has_left() -> bool:
    """Whether the script, called from its beginning on, does not run any more in this thread, the main one."""
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
