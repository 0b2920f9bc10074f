"""TCP keepalive for connections between hosts, and what the kernel knows about the other end."""

from __future__ import annotations

import math
import socket
import struct

# struct tcp_info of linux/tcp.h: its oldest part, stable across kernels: 8 bytes, then 4-byte numbers.
_INFO = struct.Struct("=8B24I")
_PROBES = 3
_UNACKNOWLEDGED = 8 + 4
_LAST_ACKNOWLEDGED_MS = 8 + 12
# The kernel's upper limit.
_LONGEST_S = 32767


def keepalive_times(limit_s: float) -> tuple[int, int, int]:
    """Idle seconds before the first probe, seconds between probes, and how many probes may stay unanswered.

    In total a little more than `limit_s`, so that the application's own silence limit takes effect first.
    """
    return min(math.ceil(limit_s / 2), _LONGEST_S), min(math.ceil(limit_s / 6), _LONGEST_S), 4


def keep_alive(connection: socket.socket, limit_s: float) -> None:
    """Makes the kernel notice that the other host is gone, even if nothing is being sent."""
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
    """Whether the other host's kernel owes an acknowledgement, and has sent none for `for_s`.

    If the other program is stopped, or reads nothing, its kernel still answers. That is why this asks the kernel, and
    why it does not use TCP_USER_TIMEOUT, which closes the connection if the other end merely does not read.
    """
    told = _INFO.unpack(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size))
    return bool(told[_UNACKNOWLEDGED] or told[_PROBES]) and told[_LAST_ACKNOWLEDGED_MS] >= 1000 * for_s
