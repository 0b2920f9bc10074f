"""Serves `/metrics` of this process over HTTP, if enabled."""

from __future__ import annotations

import ipaddress
import logging
import socket

from tfdist import errors
from tfdist.observe import meter
from tfdist.system.network import prometheus
from tfdist.system.network.http_server import BoundedHandler, BoundedServer

_LOG = logging.getLogger("tfdist")
_LARGEST_PORT = 65535
_running: list[BoundedServer] = []


def start(host: str, port: int, local_rank: int) -> int:
    """Serves the metrics of this process from now on, until `stop`.

    Args:
        host: Name or IPv4 address to listen on; "0.0.0.0" for all interfaces.
        port: The port of local rank 0; each rank uses `port + local_rank`. 0: any free port, which is logged.
        local_rank: This process's local rank, among all processes of the job.

    Returns:
        The port in use.

    Raises:
        ConfigError: If the address does not belong to this machine, or the port is taken or cannot be used.
    """
    wanted = port + local_rank if port else 0
    address = _address(host)
    try:
        if wanted > _LARGEST_PORT:
            raise OSError(0, f"the largest port is {_LARGEST_PORT}")
        listener = socket.create_server((address, wanted))
    except OSError as error:
        raise errors.ConfigError(
            f"the metrics of local rank {local_rank} cannot be served on {host}, port {wanted} (TFDIST_METRICS_PORT "
            f"{port} plus the local rank): {error.strerror}. Choose a port followed by enough free ports for all ranks "
            "of the host, or 0 for any free port; TFDIST_METRICS_HOST must be an address of this machine."
        ) from None
    taken = int(listener.getsockname()[1])
    server = BoundedServer(listener, _Handler, name=host if ipaddress.ip_address(address).is_loopback else "")
    server.start("tfdist-metrics")
    _running.append(server)
    _LOG.info("serving metrics on http://%s:%d/metrics", host, taken)
    return taken


def stop() -> None:
    """Closes the port, if it is open."""
    while _running:
        _running.pop().stop()


def _address(host: str) -> str:
    try:
        return socket.gethostbyname(host)
    except (OSError, UnicodeError) as error:
        raise errors.ConfigError(
            f"TFDIST_METRICS_HOST={host} cannot be used: {error}. Use an IPv4 address of this machine, 127.0.0.1 for "
            "local access only, or 0.0.0.0 for all interfaces."
        ) from None


class _Handler(BoundedHandler):
    def do_GET(self) -> None:  # noqa: N802  (the name the library calls it by)
        if self.path != "/metrics":
            self.answer(404, "not found; only /metrics is served\n")
            return
        try:
            text = meter.render(meter.metrics())
        except errors.NotInitializedError:
            self.answer(503, "tfdist has been shut down in this process\n")
            return
        self.answer(200, text, prometheus.CONTENT_TYPE)
