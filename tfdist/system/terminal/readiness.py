"""Whether a descriptor can be read or written without a wait, also one with a number above those of `select.select`."""

from __future__ import annotations

import math
import select


def readable(descriptor: int, timeout_s: float | None = 0.0) -> bool:
    """Whether there is something to read, or the other end is closed, at the latest after this time.

    Args:
        descriptor: A pipe, a terminal or a socket.
        timeout_s: How long to wait for it; None: as long as it takes.
    """
    return _ready(descriptor, select.POLLIN, timeout_s)


def writable(descriptor: int, timeout_s: float | None = 0.0) -> bool:
    """Whether `select.PIPE_BUF` bytes have room, or the other end is closed, at the latest after this time.

    Args:
        descriptor: As for `readable`.
        timeout_s: As for `readable`.
    """
    return _ready(descriptor, select.POLLOUT, timeout_s)


def _ready(descriptor: int, event: int, timeout_s: float | None) -> bool:
    poll = select.poll()
    poll.register(descriptor, event)
    return bool(poll.poll(None if timeout_s is None else math.ceil(timeout_s * 1000)))
