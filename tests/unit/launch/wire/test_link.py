"""Tests of tfdist.launch.wire.link."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Iterator

import pytest

from tfdist.launch.wire.link import Link


@pytest.fixture
def pair() -> Iterator[tuple[Link, socket.socket]]:
    near, far = socket.socketpair()
    with near, far:
        yield Link(near), far


def test_nothing_blocks(pair: tuple[Link, socket.socket]) -> None:
    link, far = pair
    assert link.shake() == 0
    with pytest.raises(BlockingIOError):
        link.receive(9)
    far.sendall(b"abc")
    assert link.receive(2) == b"ab"
    with contextlib.suppress(BlockingIOError):
        while True:
            link.send(bytes(1 << 16))


def test_waits_have_a_deadline(pair: tuple[Link, socket.socket]) -> None:
    link, far = pair
    with pytest.raises(TimeoutError):
        link.receive_by(1, time.monotonic() + 0.05)
    with pytest.raises(TimeoutError):
        link.send_all(bytes(1 << 24), 0.05)
    with pytest.raises(TimeoutError):
        link.wait(selectors.EVENT_READ, 0.0)
    far.sendall(b"x")
    assert link.receive_by(1, time.monotonic() + 5) == b"x"


def test_own_address() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as dialled,
    ):
        link = Link(dialled)
        assert link.own_address == "127.0.0.1"
        link.close()
        assert dialled.fileno() == -1
