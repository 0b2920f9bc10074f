"""Reserves the two ports of a server, or reports at once that they are taken.

gRPC listens with SO_REUSEPORT: a second server starts on a taken port without an error and steals connections. So the
port is first bound here exclusively and held until gRPC has it.
"""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Sequence
from pathlib import Path

from tfdist.data_service.inspection.address import LARGEST_PORT
from tfdist.errors import ConfigError

_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_SMALLEST_PORT = 20000
_ATTEMPTS = 100
_BACKLOG = 16
# Connections of a server that has just ended keep its port from all but those who say that they do not mind. That is
# asked second, and only for a port that somebody named: two sockets that both said so could be bound to one port until
# one of them listens.
_FREE, _FREE_OR_LEFT = (0,), (0, 1)


class PortPair:
    """Two reserved ports. Call `close` once both servers listen or have failed to.

    Attributes:
        port: For gRPC; `close` hands it over without ever leaving it free.
        control_port: The port of `listener`.
        listener: Already listening; the control server takes it over.
    """

    def __init__(self, guard: socket.socket, listener: socket.socket) -> None:
        self._guard, self.listener = guard, listener
        self.port = int(guard.getsockname()[1])
        self.control_port = int(listener.getsockname()[1])

    def close(self) -> None:
        """Releases the port for gRPC; the listener belongs to whoever took it over."""
        self._guard.close()

    def release(self) -> None:
        """Releases both ports, for a process that will take them soon."""
        self.listener.close()
        self.close()


def take(port: int, control_port: int | None, control_host: str) -> PortPair:
    """Reserves a pair of ports.

    Args:
        port: For gRPC; 0 picks a free port with a free port above it.
        control_port: For control; None uses `port` + 1, 0 any free port.
        control_host: Address that control listens on; empty for every interface.

    Raises:
        ConfigError: If a port is taken or not permitted.
    """
    if port:
        return _bind(port, port + 1 if control_port is None else control_port, control_host)
    if control_port:
        _bound(control_port, control_host).close()  # no attempt below would find it free
    for candidate in _candidates():
        with contextlib.suppress(ConfigError):
            return _bind(candidate, candidate + 1 if control_port is None else control_port, control_host, _FREE)
    raise ConfigError(f"no two adjacent free ports were found in {_ATTEMPTS} attempts; choose one with port (--port).")


def _candidates() -> list[int]:
    """Ports below the kernel's range for outgoing connections, so that a restarted server finds its own port free."""
    try:
        end = int(_RANGE_FILE.read_text().split()[0])
    except (OSError, ValueError):
        end = 32768
    if end - _SMALLEST_PORT < _ATTEMPTS:
        end = LARGEST_PORT - 1
    return random.sample(range(_SMALLEST_PORT, end - 1), _ATTEMPTS)


def _bind(port: int, control_port: int, control_host: str, ways: Sequence[int] = _FREE_OR_LEFT) -> PortPair:
    guard = _bound(port, "", ways)
    try:
        listener = _bound(control_port, control_host, ways)
    except ConfigError:
        guard.close()
        raise
    # Only now: bound without it, so that a port in use was refused; set, so that gRPC may bind beside us.
    guard.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    # Its connections inherit it, so that the next server on this port need not wait until the kernel forgets them.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.listen(_BACKLOG)
    return PortPair(guard, listener)


def _bound(port: int, host: str, ways: Sequence[int] = _FREE_OR_LEFT) -> socket.socket:
    for tolerant in ways:
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, tolerant)
        try:
            made.bind((host, port))
            return made
        except OSError as error:
            made.close()
            reason = error.strerror
    raise ConfigError(
        f"port {port} cannot be used on {host or 'this machine'}: {reason}. Find the process that has it with `ss "
        f"-ltnp sport = :{port}`, or choose another port; 0 picks a free one."
    )
