"""Standard streams that whoever started us has closed, as `>&-` and some daemons do: they lead to /dev/null.

Else the next socket or pipe gets the number 0, 1 or 2, and what is meant for a stream is written into it.
"""

from __future__ import annotations

import os
import sys

_STANDARD = (0, 1, 2)


def fill_closed() -> None:
    """Opens /dev/null for each standard descriptor that is closed; to be called before anything else is opened."""
    for descriptor in _STANDARD:
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest free number: those below are open by now.
            opened = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(opened, True)


def open_streams() -> None:
    """The same for a program: `print` also finds its streams, which Python leaves out where they are closed."""
    fill_closed()
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, closefd=False)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False, errors="backslashreplace")
