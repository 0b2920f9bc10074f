"""Tests of tfdist.launch.wire.tls, over loopback."""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Iterator

import pytest

from tfdist.launch.wire import tls
from tfdist.launch.wire.link import AGENT, RANK
from tfdist.launch.wire.record import RefusedFrameError
from tfdist.launch.wire.tls import Identity, TlsLink


class Server:
    """Accepts one connection after the other; the last one is `link`."""

    def __init__(self) -> None:
        self.identity = Identity()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = ("127.0.0.1", self.listener.getsockname()[1])
        self.link: TlsLink | None = None
        self.refused: list[str] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                link = self.identity.accept(self.listener.accept()[0])
            except OSError:
                return
            try:
                while waits_for := link.shake():
                    link.wait(waits_for, time.monotonic() + 5)
            except (RefusedFrameError, OSError) as error:
                self.refused.append(f"{type(error).__name__}: {error}")
                link.close()
            else:
                self.link = link

    def accepted(self) -> TlsLink:
        deadline = time.monotonic() + 5
        while self.link is None and time.monotonic() < deadline:
            threading.Event().wait(0.01)
        assert self.link is not None
        return self.link


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.listener.shutdown(socket.SHUT_RDWR)
    made.listener.close()
    if made.link is not None:
        made.link.close()


@pytest.mark.parametrize("protocol", [AGENT, RANK])
def test_both_ends_know_the_certificate_and_the_purpose(server: Server, protocol: str) -> None:
    link = tls.dial(server.address, protocol, 5, server.identity.fingerprint)
    assert link.fingerprint() == server.identity.fingerprint
    assert server.accepted().protocol == protocol
    assert link.connection.version() == "TLSv1.3"
    link.close()
    assert server.accepted().receive_by(9, time.monotonic() + 5) == b""


def test_other_certificate_is_refused_before_anything_is_sent(server: Server) -> None:
    with pytest.raises(RefusedFrameError, match="its certificate is not that of this job"):
        tls.dial(server.address, RANK, 5, bytes(32))
    assert Identity().fingerprint != server.identity.fingerprint


def test_much_data_both_ways_at_once(server: Server) -> None:
    """One thread receives while another one sends, on each end."""
    near = tls.dial(server.address, RANK, 5)
    far, size = server.accepted(), 3 << 20
    received = {id(near): 0, id(far): 0}

    def send(link: TlsLink) -> None:
        link.send_all(bytes(size), 20)

    def receive(link: TlsLink) -> None:
        while received[id(link)] < size:
            received[id(link)] += len(link.receive_by(1 << 15, time.monotonic() + 20))

    threads = [threading.Thread(target=do, args=(link,)) for do in (send, receive) for link in (near, far)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert set(received.values()) == {size}
    near.close()


def test_no_bytes_are_hidden_from_a_selector(server: Server) -> None:
    near = tls.dial(server.address, RANK, 5)
    far = server.accepted()
    near.send_all(b"x" * 40000, 5)
    found = b""
    with selectors.DefaultSelector() as selector:
        selector.register(far.connection, selectors.EVENT_READ)
        while len(found) < 40000 and selector.select(5):
            found += far.receive(1 << 14)
    assert len(found) == 40000
    with pytest.raises(BlockingIOError):
        far.receive(1 << 14)
    near.close()


@pytest.mark.parametrize(
    "said", [b"GET / HTTP/1.1\r\n\r\n", bytes(100), b"tfdist-1" * 9], ids=["http", "zeros", "frames"]
)
def test_who_speaks_no_tls_is_refused(server: Server, said: bytes) -> None:
    with socket.create_connection(server.address, 5) as stranger:
        stranger.sendall(said)
        stranger.settimeout(5)
        with contextlib.suppress(ConnectionResetError):
            while stranger.recv(100):  # an alert of TLS
                pass
    assert server.refused == ["RefusedFrameError: it does not speak TLS 1.3"]


def test_older_tls_is_refused(server: Server) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection(server.address, 5) as plain, pytest.raises(ssl.SSLError):
        context.wrap_socket(plain)


def test_launcher_that_speaks_no_tls_or_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        with pytest.raises(TimeoutError):
            tls.dial(address, AGENT, 0.1)
        accepted: list[socket.socket] = []

        def answer() -> None:
            listener.accept()[0].close()  # the one above
            accepted.append(listener.accept()[0])
            accepted[0].sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 9)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises((RefusedFrameError, ConnectionResetError)):
            tls.dial(address, AGENT, 5)
        thread.join(5)
        accepted[0].close()
