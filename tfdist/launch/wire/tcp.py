"""What the kernel does for a connection between hosts, and what it knows of the other end. No message is read here."""

from __future__ import annotations

import math
import socket
import struct

# struct tcp_info of linux/tcp.h, the oldest part, which no kernel changes: 8 bytes, then numbers of 4 bytes.
_INFO = struct.Struct("=8B24I")
_PROBES = 3
_UNACKNOWLEDGED = 8 + 4
_LAST_ACKNOWLEDGED_MS = 8 + 12
# Of the kernel's times.
_LONGEST_S = 32767


def keepalive_times(limit_s: float) -> tuple[int, int, int]:
    """Seconds of quiet before the first probe, seconds between probes, and how many may stay without an answer.

    Together a little more than `limit_s`, so that whoever counts the silence to that limit has the first word.
    """
    return min(math.ceil(limit_s / 2), _LONGEST_S), min(math.ceil(limit_s / 6), _LONGEST_S), 4


def keep_alive(connection: socket.socket, limit_s: float) -> None:
    """Has the kernel notice that the other host is gone, where nothing is under way to it."""
    quiet_s, between_s, probes = keepalive_times(limit_s)
    for level, option, value in (
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, quiet_s),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, between_s),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, probes),
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    ):
        connection.setsockopt(level, option, value)


def is_unanswered(connection: socket.socket, for_s: float) -> bool:
    """Whether the other kernel owes an acknowledgement, and has sent none for `for_s`.

    The other program may be stopped, or read nothing: its kernel goes on to answer. That is why this asks the kernel,
    and why TCP_USER_TIMEOUT will not do, which ends a connection whose other end only does not read.
    """
    told = _INFO.unpack(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size))
    return bool(told[_UNACKNOWLEDGED] or told[_PROBES]) and told[_LAST_ACKNOWLEDGED_MS] >= 1000 * for_s
