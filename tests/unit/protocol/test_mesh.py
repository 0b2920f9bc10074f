"""Tests of tfdist.protocol.mesh, each process a thread; strangers, wrong keys and those that are late."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from tfdist.errors import PeerLostError
from tfdist.protocol import mesh
from tfdist.protocol.handshake import Acceptor, Dialer

KEY, CONTEXT, LIMIT_S = b"k" * 32, b"job|1|0", 30.0
Found = dict[int, socket.socket]


@pytest.fixture
def opened() -> Iterator[list[socket.socket]]:
    """Closes at the end what a test has put into it."""
    kept: list[socket.socket] = []
    yield kept
    for each in kept:
        each.close()


def meet(size: int, listeners: list[socket.socket], key: Callable[[int], bytes] = lambda _: KEY) -> list[object]:
    """The connections by rank, or the error of a rank."""
    addresses = {rank: listener.getsockname()[:2] for rank, listener in enumerate(listeners)}
    results: list[object] = [None] * size

    def run(rank: int) -> None:
        peers = {other: at for other, at in addresses.items() if other != rank}
        timeout_s = LIMIT_S if key(rank) == KEY == key(0) else 1.0
        try:
            results[rank] = mesh.Mesh(listeners[rank], rank, peers, key(rank), CONTEXT, timeout_s, 30.0).connect()
        except PeerLostError as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * LIMIT_S)
    return results


def say(found: list[object], opened: list[socket.socket]) -> None:
    """Each pair has one connection: what one end sends comes out at the other."""
    for rank, connections in enumerate(found):
        assert isinstance(connections, dict)
        opened += connections.values()
        for connection in connections.values():
            connection.setblocking(True)
            connection.settimeout(LIMIT_S)
            connection.sendall(bytes((rank,)))
    for connections in found:
        assert isinstance(connections, dict)
        assert {peer: connection.recv(9) for peer, connection in connections.items()} == {
            peer: bytes((peer,)) for peer in connections
        }


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_each_pair_is_connected(size: int, address: str, opened: list[socket.socket]) -> None:
    found = meet(size, [mesh.listen(address) for _ in range(size)])
    assert [sorted(each) for each in found] == [[r for r in range(size) if r != own] for own in range(size)]  # type: ignore[call-overload]
    say(found, opened)


def test_listener_closes_when_all_have_come(opened: list[socket.socket]) -> None:
    listeners = [mesh.listen("127.0.0.1") for _ in range(2)]
    address = listeners[0].getsockname()
    say(meet(2, listeners), opened)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, 5)


def test_connections_notice_a_lost_host(opened: list[socket.socket]) -> None:
    found = meet(2, [mesh.listen("127.0.0.1") for _ in range(2)])
    say(found, opened)
    for connection in opened:
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_silent_and_lying_strangers_keep_nobody_out(opened: list[socket.socket]) -> None:
    listeners = [mesh.listen("127.0.0.1") for _ in range(3)]
    for listener in listeners:
        for number in range(200):
            stranger = socket.create_connection(listener.getsockname(), 5)
            stranger.sendall((b"", os.urandom(200), Dialer(b"x" * 32, CONTEXT, 1, 0).unsent)[number % 3])
            opened.append(stranger)
    found = meet(3, listeners)
    say(found, opened)


def test_wrong_key_is_named_on_both_sides(opened: list[socket.socket]) -> None:
    told = meet(2, [mesh.listen("127.0.0.1") for _ in range(2)], lambda rank: KEY if rank else b"x" * 32)
    assert "rank 1 waited 1 s for" not in str(told[1]) and "does not have this job's key" in str(told[1])
    assert "rank 0 at 127.0.0.1" in str(told[1])
    assert "rank 0 waited 1 s for connections with rank 1" in str(told[0])


def test_missing_process_is_named_with_the_reason() -> None:
    listener, gone = mesh.listen("127.0.0.1"), mesh.listen("127.0.0.1")
    peers = {0: gone.getsockname()[:2]}
    gone.close()
    with pytest.raises(PeerLostError) as told:
        mesh.Mesh(listener, 1, peers, KEY, CONTEXT, 0.2, 30.0).connect()
    assert f"rank 0 at 127.0.0.1:{peers[0][1]} (Connection refused)" in str(told.value)
    assert listener.fileno() < 0


def test_process_that_listens_later_is_found(opened: list[socket.socket], wait_until: Callable[..., None]) -> None:
    first, second = mesh.listen("127.0.0.1"), mesh.listen("127.0.0.1")
    addresses = [first.getsockname()[:2], second.getsockname()[:2]]
    first.close()
    found: list[Found] = []
    late = mesh.Mesh(second, 1, {0: addresses[0]}, KEY, CONTEXT, LIMIT_S, 30.0)
    thread = threading.Thread(target=lambda: found.append(late.connect()))
    thread.start()
    wait_until(lambda: late._tries.get(0, 0) > 1, what="two attempts in vain")
    again = mesh.listen(*addresses[0])
    own = mesh.Mesh(again, 0, {1: addresses[1]}, KEY, CONTEXT, LIMIT_S, 30.0).connect()
    thread.join(LIMIT_S)
    say([own, found[0]], opened)


def test_dialer_that_was_dropped_dials_again(opened: list[socket.socket]) -> None:
    """An acceptor with too many strangers drops the oldest one, which may be a peer."""
    listener, front = mesh.listen("127.0.0.1"), mesh.listen("127.0.0.1")
    real, seen = listener.getsockname()[:2], front.getsockname()[:2]
    other = mesh.listen("127.0.0.1")
    peer = other.getsockname()[:2]
    results: dict[int, Found] = {}
    ranks = {0: (listener, {1: peer}), 1: (other, {0: seen})}

    def run(rank: int) -> None:
        own, peers = ranks[rank]
        results[rank] = mesh.Mesh(own, rank, peers, KEY, CONTEXT, LIMIT_S, 30.0).connect()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    front.setblocking(True)
    front.settimeout(LIMIT_S)
    dropped, _ = front.accept()
    dropped.recv(1)
    dropped.close()
    relayed, _ = front.accept()
    _relay(relayed, socket.create_connection(real, 5), lambda: len(results) == 2)
    for thread in threads:
        thread.join(LIMIT_S)
    opened += [connection for each in results.values() for connection in each.values()]
    assert {rank: sorted(each) for rank, each in results.items()} == {0: [1], 1: [0]}
    front.close()


def _relay(one: socket.socket, other: socket.socket, is_over: Callable[[], bool]) -> None:
    with contextlib.closing(selectors.DefaultSelector()) as selector, one, other:
        selector.register(one, selectors.EVENT_READ, other)
        selector.register(other, selectors.EVENT_READ, one)
        while not is_over():
            for key, _ in selector.select(0.1):
                key.data.sendall(key.fileobj.recv(4096))  # type: ignore[union-attr]


def test_connection_that_its_dialer_gave_up_is_replaced(
    opened: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The acceptor was slow: it finishes the handshake of a connection whose other end is closed."""
    sent, closed = threading.Event(), threading.Event()

    class Slow(Acceptor):
        def feed(self, data: bytes) -> bytes:
            if sent.is_set():
                closed.wait(LIMIT_S)
            return super().feed(data)

    monkeypatch.setattr(mesh, "Acceptor", Slow)
    listener, other = mesh.listen("127.0.0.1"), mesh.listen("127.0.0.1")
    address = listener.getsockname()[:2]
    given_up = socket.create_connection(address, 5)
    first = Dialer(KEY, CONTEXT, 1, 0)
    given_up.sendall(first.unsent)
    results: list[Found] = []
    slow = mesh.Mesh(listener, 0, {1: other.getsockname()[:2]}, KEY, CONTEXT, LIMIT_S, 30.0)
    thread = threading.Thread(target=lambda: results.append(slow.connect()))
    thread.start()
    given_up.settimeout(LIMIT_S)
    proof = b""
    while not proof:
        proof = first.feed(given_up.recv(first.wanted))
    sent.set()
    given_up.sendall(proof)
    given_up.close()
    closed.set()
    own = mesh.Mesh(other, 1, {0: address}, KEY, CONTEXT, LIMIT_S, 30.0).connect()
    thread.join(LIMIT_S)
    say([results[0], own], opened)


def test_wait_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh, "_QUIET_S", 0.1)
    said: list[str] = []
    listener, gone = mesh.listen("127.0.0.1"), mesh.listen("127.0.0.1")
    at = gone.getsockname()[:2]
    gone.close()
    with pytest.raises(PeerLostError):
        mesh.Mesh(listener, 1, {0: at}, KEY, CONTEXT, 0.4, 30.0).connect(said.append)
    assert len(said) == 1
    assert said[0].startswith("still waiting: rank 1 waited 0.1 s for connections with rank 0 at 127.0.0.1")
