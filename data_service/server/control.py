"""The HTTP interface of a server: health, readiness, metrics, status, drain requests, and reports of waiting. Measures
nothing itself.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from tfdist.data_service.inspection import wait_report
from tfdist.data_service.inspection.status import Status
from tfdist.data_service.server import metrics
from tfdist.data_service.server.drain_request import HEADER, LARGEST_BODY_BYTES, Gatekeeper
from tfdist.data_service.server.wait_book import WaitBook
from tfdist.system.network import prometheus
from tfdist.system.network.http_server import BoundedHandler, BoundedServer

_POSTS = "POST /drain on a worker, POST /wait on a dispatcher"


@dataclass(frozen=True)
class Source:
    """Where the answers come from; each function is called for one request, from any thread.

    Attributes:
        status: The server's status.
        obstacle: Why the server is not ready; empty if it is.
        drain: Starts a drain and returns immediately; None on a server that cannot drain.
        gatekeeper: Authenticates drain requests; None if there is no key, so none are accepted.
        waits: Records trainers' reports of waiting; None on a server that takes none.
        tick: Called ten times a second, by the accepting thread; must be quick.
        name: The only host name accepted in requests if the server is for this machine alone: otherwise a page in a
            local browser could point its own name here (DNS rebinding). Empty: any name.
    """

    status: Callable[[], Status]
    obstacle: Callable[[], str]
    drain: Callable[[], None] | None = None
    gatekeeper: Gatekeeper | None = None
    waits: WaitBook | None = None
    tick: Callable[[], None] = lambda: None
    name: str = ""


class ControlServer(BoundedServer):
    """Answers on a socket that already listens, in its own threads, until `stop`.

    Args:
        listener: The socket; taken over.
        source: Where the answers come from.
    """

    def __init__(self, listener: socket.socket, source: Source) -> None:
        super().__init__(listener, _Handler, source.name, source.tick)
        self.source = source
        self.admission = threading.Lock()
        self.start("tfdist-control")


class _Handler(BoundedHandler):
    server: ControlServer

    def do_GET(self) -> None:  # noqa: N802  (the name the library calls it by)
        source = self.server.source
        if self.path == "/healthz":
            self.answer(200, "alive\n")
        elif self.path == "/readyz":
            obstacle = source.obstacle()
            self.answer(503 if obstacle else 200, f"{obstacle or 'ready'}\n")
        elif self.path == "/metrics":
            self.answer(200, metrics.render(source.status()), prometheus.CONTENT_TYPE)
        elif self.path == "/status":
            self.answer(200, json.dumps(source.status().to_json()) + "\n", "application/json")
        else:
            self.answer(404, f"not found; available: /healthz, /readyz, /metrics, /status, {_POSTS}\n")

    def do_POST(self) -> None:  # noqa: N802  (the name the library calls it by)
        source = self.server.source
        if self.path == "/drain" and source.drain is not None:
            self._take_drain(source.drain, source.gatekeeper)
        elif self.path == wait_report.PATH and source.waits is not None:
            self._take_wait(source.waits)
        else:
            self.answer(404, f"not found; available: {_POSTS}\n")

    def _take_drain(self, drain: Callable[[], None], gatekeeper: Gatekeeper | None) -> None:
        if gatekeeper is None:
            self.answer(403, "this worker was started without a key file, so only SIGTERM drains it\n")
            return
        body = self.read_body(LARGEST_BODY_BYTES)
        if body is None:
            return
        with self.server.admission:
            refusal = gatekeeper.refusal(body, self.headers.get(HEADER, ""), time.time())
        if refusal:
            self.answer(403, f"{refusal}\n")
        else:
            drain()
            self.answer(202, "drains\n")

    def _take_wait(self, waits: WaitBook) -> None:
        body = self.read_body(wait_report.LARGEST_BODY_BYTES)
        if body is None:
            return
        try:
            wait = wait_report.parse(body)
        except ValueError as error:
            self.answer(400, f"not a valid report of waiting: {error}\n")
            return
        if waits.note(wait, time.monotonic()):
            self.answer(200, "noted\n")
        else:
            self.answer(503, "too many trainers have reported; this report is dropped\n")
