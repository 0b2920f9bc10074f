"""Tests of tcp over loopback, where the other kernel always answers; tests/launch cuts real links."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest

from tfdist.system.network import tcp


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname(), 5)
        other, _ = listener.accept()
    with one, other:
        yield one, other


@pytest.mark.parametrize(("limit_s", "longest_s"), [(0.5, 5), (30.0, 35), (300.0, 350), (1e9, 1e6)])
def test_keep_alive(pair: tuple[socket.socket, socket.socket], limit_s: float, longest_s: float) -> None:
    tcp.keep_alive(pair[0], limit_s)
    values = [
        pair[0].getsockopt(socket.IPPROTO_TCP, name)
        for name in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    ]
    assert min(limit_s, 1e5) < values[0] + values[1] * values[2] <= longest_s
    assert pair[0].getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1


def test_acknowledged_data_wants_no_answer(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[0].sendall(b"x")
    assert pair[1].recv(1) == b"x"
    assert not tcp.is_unanswered(pair[0], 0.0)


def test_other_end_that_does_not_read_is_there(
    pair: tuple[socket.socket, socket.socket], wait_until: Callable[..., None]
) -> None:
    """Its buffer is full, and what is left waits here."""
    pair[0].setblocking(False)

    def full() -> bool:
        try:
            pair[0].send(bytes(1 << 16))
        except BlockingIOError:
            return True
        return False

    wait_until(full, seconds=5, what="a full buffer")
    wait_until(lambda: not tcp.is_unanswered(pair[0], 0.0), seconds=5, what="acknowledgement of what was sent")
