"""Opens /dev/null for standard streams that our parent closed, as `>&-` and some daemons do.

Otherwise the next socket or pipe would get the number 0, 1 or 2, and receive what is printed.
"""

from __future__ import annotations

import os
import sys

_STANDARD = (0, 1, 2)


def fill_closed() -> None:
    """Opens /dev/null for each closed standard descriptor; call it before opening anything else."""
    for descriptor in _STANDARD:
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest free number: those below are already open.
            opened = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(opened, True)


def open_streams() -> None:
    """The same for a whole program: also sets `sys.stdout` and the like, which are None if closed at startup."""
    fill_closed()
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, closefd=False)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False, errors="backslashreplace")
