"""A server that a stranger cannot occupy: how many are answered, for how long, and where threads run out."""

from __future__ import annotations

import contextlib
import http.server
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tfdist.system.network import http_server
from tfdist.system.network.http_server import BoundedHandler, BoundedServer

GET = b"GET / HTTP/1.0\r\n\r\n"


class Greeter(BoundedHandler):
    def do_GET(self) -> None:
        self.answer(200, "hello\n")


@pytest.fixture
def server() -> Iterator[BoundedServer]:
    made = BoundedServer(socket.create_server(("127.0.0.1", 0)), Greeter)
    made.start("greeter")
    yield made
    made.stop()


def connect(server: BoundedServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.server_address[1]), 30)


def got(connection: socket.socket) -> bytes:
    """Everything until the other side closes."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(1 << 16):
            received += piece
    return received


def asked(server: BoundedServer, request: bytes = GET) -> bytes:
    with connect(server) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(request)
        return got(connection)


def test_it_answers(server: BoundedServer) -> None:
    assert asked(server).endswith(b"\r\n\r\nhello\n")


def test_one_connection_too_many_is_closed(server: BoundedServer) -> None:
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(connect(server)) for _ in range(http_server._CONNECTIONS)]
        with connect(server) as further:
            assert got(further) == b""
        for connection in held:
            connection.sendall(GET)
            assert got(connection).endswith(b"hello\n")


def test_who_sends_byte_by_byte_is_cut(
    server: BoundedServer, monkeypatch: pytest.MonkeyPatch, wait_until: Callable[..., None]
) -> None:
    """Each byte comes in time, the request never."""
    with monkeypatch.context() as patch:
        patch.setattr(http_server, "_REQUEST_SECONDS", 0.2)
        with connect(server) as connection:
            connection.sendall(b"GET / HTTP/1.0\r\nX: ")

            def is_cut() -> bool:
                try:
                    connection.sendall(b"y")
                except OSError:
                    return True
                return False

            wait_until(is_cut, seconds=30, what="the end of the connection")
    assert asked(server).endswith(b"hello\n")


def test_a_first_line_without_end_is_cut(server: BoundedServer) -> None:
    """As much as is read, and not its end. Without the limit the server would wait for that, and not answer."""
    line = b"GET /" + b"x" * http_server.LARGEST_HEAD_BYTES
    assert asked(server, line[: http_server.LARGEST_HEAD_BYTES]).endswith(b"hello\n")


def test_threads_that_cannot_be_started_cost_no_connection(
    server: BoundedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    for owner, name in ((http.server.ThreadingHTTPServer, "process_request"), (http_server.threading.Timer, "start")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fail)
            for _ in range(http_server._CONNECTIONS + 1):
                assert asked(server) == b""
        assert asked(server).endswith(b"hello\n")


IN_A_COPY = """
import os, signal, socket
from tfdist.system.network.http_server import BoundedHandler, BoundedServer
server = BoundedServer(socket.create_server(("127.0.0.1", 0)), BoundedHandler)
server.start("x")
copy = os.fork()
if copy == 0:
    signal.alarm(20)
    server.stop()
    os._exit(0)
assert os.waitpid(copy, 0)[1] == 0
server.stop()
"""


def test_it_can_be_stopped_in_a_copy_of_its_process(run_script: Callable[..., str]) -> None:
    run_script(IN_A_COPY)
