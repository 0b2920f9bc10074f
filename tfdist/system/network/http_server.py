"""A small HTTP server that a client cannot exhaust: connections, time and header sizes are bounded."""

from __future__ import annotations

import contextlib
import http.server
import ipaddress
import logging
import socket
import threading
from collections.abc import Callable
from typing import Any

LARGEST_HEAD_BYTES = 16 << 10
_LOG = logging.getLogger("tfdist")
_REQUEST_SECONDS = 5.0
_CONNECTIONS = 32


class BoundedServer(http.server.ThreadingHTTPServer):
    """Serves requests on a listening socket, in its own threads, from `start` to `stop`.

    Args:
        listener: The socket; taken over.
        handler: Handles one request per instance.
        name: The only host name accepted in requests, if the server is for this machine only; otherwise a web page
            could make its own name resolve to us (DNS rebinding). Empty: any name.
        tick: Called ten times a second by the accepting thread; it must be fast.
    """

    daemon_threads = True

    def __init__(
        self,
        listener: socket.socket,
        handler: type[BoundedHandler],
        name: str = "",
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(listener.getsockname(), handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.name = name
        self._tick = tick
        self._free = threading.BoundedSemaphore(_CONNECTIONS)

    def start(self, thread_name: str) -> None:
        """Starts serving."""
        self._thread = threading.Thread(target=self.serve_forever, args=(0.1,), name=thread_name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Closes the port; requests in progress may still be answered."""
        if self._thread.is_alive():  # not in a forked process, where the thread does not exist
            self.shutdown()
        self._thread.join(_REQUEST_SECONDS)
        self.server_close()

    def service_actions(self) -> None:
        super().service_actions()
        self._tick()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)  # a client that occupies all connections only blocks itself
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no resources for another thread
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        cut = threading.Timer(_REQUEST_SECONDS, _cut, (request,))
        cut.daemon = True
        try:
            cut.start()
            super().process_request_thread(request, client_address)
        except RuntimeError:  # as above; without a deadline no request may start
            self.shutdown_request(request)
        finally:
            cut.cancel()
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        _LOG.debug("a request from %s was aborted", client_address, exc_info=True)


def _is_ours(asked: str, own: str) -> bool:
    """Whether a `Host` header is our name, or an IP address, which DNS cannot forge."""
    host = asked.rpartition(":")[0] if asked.rpartition(":")[2].isdecimal() else asked
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host.strip("[]"))
        return True
    return host.lower() in ("localhost", own.lower())


def _cut(request: socket.socket) -> None:
    """Ends a request that takes too long, for whatever reason."""
    with contextlib.suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


class LimitedReader:
    """Bounds the size of a request's header; `http.server` alone would accept megabytes."""

    def __init__(self, file: Any) -> None:
        self._file, self._left = file, LARGEST_HEAD_BYTES

    def readline(self, limit: int = -1) -> bytes:
        line = bytes(self._file.readline(self._left if limit < 0 else min(limit, self._left)))
        self._left -= len(line)
        return line

    def read(self, size: int) -> bytes:
        return bytes(self._file.read(size))

    def close(self) -> None:
        self._file.close()


class BoundedHandler(http.server.BaseHTTPRequestHandler):
    """A handler of a `BoundedServer`; subclasses add `do_GET` and the like."""

    server: BoundedServer
    timeout = _REQUEST_SECONDS
    server_version = "tfdist"
    sys_version = ""

    def setup(self) -> None:
        super().setup()
        self.rfile = LimitedReader(self.rfile)  # type: ignore[assignment]

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        own, asked = self.server.name, self.headers.get("Host", "")
        if not own or not asked or _is_ours(asked, own):
            return True
        self.answer(421, f"this server is for this machine only; use the host name {own}\n")
        return False

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the name the library calls it by)
        _LOG.debug("HTTP: " + format, *args)

    def read_body(self, largest: int) -> bytes | None:
        """The body of a request; None, after sending an error, if its size is invalid."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or not 0 < int(length) <= largest:
            self.answer(413, f"expected a body of 1 to {largest} bytes, with its Content-Length\n")
            return None
        return self.rfile.read(int(length))

    def answer(self, code: int, text: str, kind: str = "text/plain; charset=utf-8") -> None:
        """Sends a complete response."""
        data = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
