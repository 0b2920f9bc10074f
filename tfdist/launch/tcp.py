"""What the kernel does for a connection between hosts, and what it knows of the other end. No message is read here."""

from __future__ import annotations

import socket
import struct

# struct tcp_info of linux/tcp.h, the oldest part, which no kernel changes: 8 bytes, then numbers of 4 bytes.
_INFO = struct.Struct("=8B24I")
_PROBES = 3
_UNACKNOWLEDGED = 8 + 4
_LAST_ACKNOWLEDGED_MS = 8 + 12


def keep_alive(connection: socket.socket) -> None:
    """Has the kernel notice within half a minute that the other host is gone, where nothing is under way to it."""
    for level, option, value in (
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
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
