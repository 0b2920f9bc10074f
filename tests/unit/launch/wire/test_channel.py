"""Tests of tfdist.launch.wire.channel, over real loopback sockets."""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tfdist.launch.job.outcome import CLOSED
from tfdist.launch.wire import record, tls
from tfdist.launch.wire.channel import STRANGER_LIMIT_BYTES, Channel, Lost, Received
from tfdist.launch.wire.link import AGENT, RANK
from tfdist.launch.wire.record import TO_LAUNCHER, TO_RANK, FrameBuffer, Opener, RefusedFrameError, Sealer
from tfdist.launch.wire.ticket import Ticket
from tfdist.launch.wire.tls import Identity
from tfdist.system.terminal.line import Piece


class End:
    """Both sides: the channel and what it delivers, and connections of ranks."""

    def __init__(self, keep: Any = None, silence_limit_s: float = 60.0, write: Any = None) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.ticket = Ticket.issue(*listener.getsockname())
        self.events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.output: queue.SimpleQueue[Any] = queue.SimpleQueue()
        write = write or (lambda *words: self.output.put(words))
        self.warnings: list[str] = []
        self.channel = Channel(listener, self.ticket, 3, self.events, write, self.warnings.append, keep)
        self.channel.start(silence_limit_s)

    def connect(self) -> socket.socket:
        return socket.create_connection((self.ticket.host, self.ticket.port), 5)

    def sealer(self, rank: int, key: bytes | None = None) -> Sealer:
        return Sealer(self.ticket.job, key or self.ticket.key, TO_LAUNCHER, rank)


@pytest.fixture
def end() -> Iterator[End]:
    made = End()
    yield made
    made.channel.close()


def _keeping(kept: list[Any]) -> End:
    """One that keeps results, and refuses an empty one as a call does."""

    def keep(rank: int, text: str) -> None:
        if not text:
            raise RefusedFrameError("an empty part")
        kept.append((rank, text))

    return End(keep)


def _refused(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_conversation(end: End) -> None:
    sealer = end.sealer(1)
    with end.connect() as connection:
        connection.sendall(sealer.seal("hello", host="h", pid=3))
        event = end.events.get(timeout=5)
        assert isinstance(event, Received)
        assert (event.rank, event.message.fields, event.address) == (1, {"host": "h", "pid": 3}, "127.0.0.1")
        end.channel.send(1, "run", command=["x"], silence_limit=3, elastic=True, commits="", window=9, redrawn=[])
        buffer = FrameBuffer()
        while (frame := buffer.take()) is None:
            buffer.feed(connection.recv(4096))
        opened = Opener(end.ticket.job, end.ticket.key, TO_RANK, range(1, 2)).open(*frame)[1]
        assert opened.fields == {
            "command": ["x"],
            "silence_limit": 3,
            "elastic": True,
            "commits": "",
            "window": 9,
            "redrawn": [],
        }
        connection.sendall(sealer.seal("output", stream="stderr", text="é\udc80" * 9000, end="line"))
        assert end.output.get(timeout=5) == (1, "stderr", Piece(b"\xc3\xa9\x80" * 9000, "line"))
    assert end.events.get(timeout=5) == Lost(1, CLOSED)
    end.channel.send(1, "release", forget=False, backup="")
    assert end.warnings == []


def test_refused_and_reported_once(end: End) -> None:
    hello = end.sealer(0).seal("hello", host="h", pid=1)
    large = end.sealer(0).seal("hello", host="h" * STRANGER_LIMIT_BYTES, pid=1)
    stranger = end.sealer(0, key=bytes(32)).seal("hello", host="h", pid=1)
    early = end.sealer(2).seal("started", pid=1)
    for data in (b"GET / HTTP/1.1\r\n" * 9, stranger, large, early, hello[:4] + bytes([hello[4] ^ 1]) + hello[5:]):
        with end.connect() as connection:
            connection.sendall(data)
            assert _refused(connection)
    assert len(end.warnings) == 1
    assert "127.0.0.1:" in end.warnings[0]
    assert end.events.empty()


def test_replay_on_another_connection(end: End) -> None:
    hello = end.sealer(0).seal("hello", host="h", pid=1)
    with end.connect() as first, end.connect() as second:
        first.sendall(hello)
        assert isinstance(end.events.get(timeout=5), Received)
        second.sendall(hello)
        assert _refused(second)
        assert "replay" in end.warnings[0]
        assert end.events.empty()


def test_output_that_is_no_text(end: End) -> None:
    """Half a surrogate pair, which no bytes that are read as text give."""
    sealer = end.sealer(0)
    with end.connect() as connection:
        connection.sendall(sealer.seal("hello", host="h", pid=1))
        assert isinstance(end.events.get(timeout=5), Received)
        connection.sendall(sealer.seal("output", stream="stdout", text="\ud800", end="line"))
        assert end.events.get(timeout=5) == Lost(0, "sent an invalid message: output that is neither text nor bytes")


def test_rank_cannot_speak_for_another(end: End) -> None:
    with end.connect() as connection:
        connection.sendall(end.sealer(0).seal("hello", host="h", pid=1) + end.sealer(1).seal("hello", host="h", pid=1))
        assert isinstance(end.events.get(timeout=5), Received)
        assert end.events.get(timeout=5).how.startswith("sent an invalid message: the connection of rank 0 speaks")
    assert "speaks for another" in end.warnings[0]


def test_result_is_kept_or_refused() -> None:
    kept: list[Any] = []
    made = _keeping(kept)
    sealer = made.sealer(1)
    with made.connect() as connection:
        connection.sendall(sealer.seal("hello", host="h", pid=1) + sealer.seal("result", data="eA=="))
        connection.sendall(sealer.seal("failing"))
        assert made.events.get(timeout=5).message.kind == "hello"
        assert made.events.get(timeout=5).message.kind == "failing"
        assert kept == [(1, "eA==")]
        connection.sendall(sealer.seal("result", data=""))
        assert _refused(connection)
    assert made.events.get(timeout=5) == Lost(1, "sent an invalid message: an empty part")
    made.channel.close()
    assert "an empty part" in made.warnings[0]


@pytest.mark.parametrize("forged", ["key", "rank", "replay", "oversized"])
def test_forged_result_is_refused(forged: str) -> None:
    kept: list[Any] = []
    made = _keeping(kept)
    sealer = made.sealer(1)
    hello = sealer.seal("hello", host="h", pid=1)
    part = sealer.seal("result", data="eA==")
    frame = {
        "key": made.sealer(1, key=bytes(32)).seal("result", data="eA=="),
        "rank": made.sealer(2).seal("result", data="eA=="),
        "replay": part,
        "oversized": (record.BODY_LIMIT_BYTES + 1).to_bytes(4, "big") + bytes(record.HEAD_BYTES),
    }[forged]
    with made.connect() as connection:
        connection.sendall(hello + part + frame)
        assert made.events.get(timeout=5).message.kind == "hello"
        assert made.events.get(timeout=5).rank == 1
        assert _refused(connection)
    made.channel.close()
    assert kept == [(1, "eA==")]
    assert len(made.warnings) == 1


def test_result_that_nobody_asked_for(end: End) -> None:
    sealer = end.sealer(0)
    with end.connect() as connection:
        connection.sendall(sealer.seal("hello", host="h", pid=1) + sealer.seal("result", data="eA=="))
        assert _refused(connection)
    assert "an unexpected result" in end.warnings[0]


def test_crowd_of_strangers_is_bounded(end: End) -> None:
    crowd = [end.connect() for _ in range(3 + 64 + 1)]
    assert _refused(crowd[0])
    with end.connect() as rank:
        rank.sendall(end.sealer(2).seal("hello", host="h", pid=1))
        assert isinstance(end.events.get(timeout=5), Received)
    for connection in crowd:
        connection.close()
    assert record.BODY_LIMIT_BYTES > STRANGER_LIMIT_BYTES


def test_close_ends_connections() -> None:
    made = End()
    with made.connect() as connection:
        connection.sendall(made.sealer(0).seal("hello", host="h", pid=1))
        made.events.get(timeout=5)
        made.channel.close()
        assert _refused(connection)


def test_silent_rank_is_lost_and_one_that_shows_itself_is_not() -> None:
    """Ranks 0 and 2 have started, rank 1 has not yet: how long that may take is not a matter of the channel."""
    made = End(silence_limit_s=1.0)
    sealers = [made.sealer(rank) for rank in range(3)]
    with made.connect() as silent, made.connect() as starting, made.connect() as alive:
        for sealer, connection in zip(sealers, (silent, starting, alive), strict=True):
            connection.sendall(sealer.seal("hello", host="h", pid=1))
        for sealer, connection in ((sealers[0], silent), (sealers[2], alive)):
            connection.sendall(sealer.seal("started", pid=2))
        seen: list[Any] = []
        deadline = time.monotonic() + 10
        while not any(isinstance(event, Lost) for event in seen) and time.monotonic() < deadline:
            alive.sendall(sealers[2].seal("alive"))
            with contextlib.suppress(queue.Empty):
                seen.append(made.events.get(timeout=0.1))
        assert seen[-1] == Lost(0, "has not answered for 1 s (TFDIST_HOST_TIMEOUT)")
        assert sorted(event.message.kind for event in seen[:-1]) == ["hello"] * 3 + ["started"] * 2
        assert _refused(silent)
        alive.sendall(sealers[2].seal("failing"))
        assert made.events.get(timeout=5).message.kind == "failing"
    made.channel.close()


def test_time_in_which_output_waits_to_be_read_is_no_silence() -> None:
    opened = threading.Event()
    made = End(silence_limit_s=1.0, write=lambda *words: opened.wait(10))
    with made.connect() as chatty, made.connect() as other:
        for rank, connection in ((0, chatty), (1, other)):
            sealer = made.sealer(rank)
            connection.sendall(sealer.seal("hello", host="h", pid=1) + sealer.seal("started", pid=2))
            assert made.events.get(timeout=5).message.kind == "hello"
            assert made.events.get(timeout=5).message.kind == "started"
            if rank == 0:
                blocked = sealer.seal("output", stream="stdout", text="x", end="line")
        chatty.sendall(blocked)
        with pytest.raises(queue.Empty):
            made.events.get(timeout=2.5)
        opened.set()
        assert isinstance(made.events.get(timeout=5), Lost)
    made.channel.close()


def _end_under_tls() -> End:
    made, identity = End.__new__(End), Identity()
    listener = socket.create_server(("127.0.0.1", 0))
    made.ticket = Ticket.issue(*listener.getsockname(), identity.fingerprint)
    made.events, made.warnings = queue.SimpleQueue(), []
    made.channel = Channel(listener, made.ticket, 3, made.events, lambda *words: None, made.warnings.append)
    made.channel.start(60.0, identity.accept)
    return made


@pytest.mark.parametrize("first", [b"", b"x"])
def test_connections_that_are_reset_at_once_end_nothing(first: bytes) -> None:
    """As a scan of ports makes them. One in a hundred is reset before it was accepted."""
    made = _end_under_tls()
    for _ in range(1000):
        with made.connect() as stranger:
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            stranger.sendall(first)
    link = tls.dial((made.ticket.host, made.ticket.port), RANK, 5, made.ticket.fingerprint)
    link.send_all(made.sealer(1).seal("hello", host="h", pid=3), 5)
    event = made.events.get(timeout=5)
    assert isinstance(event, Received), event
    link.close()
    made.channel.close()


def test_rank_under_tls() -> None:
    """A stranger without TLS, an agent that is late, and a rank that is served beside them."""
    made = _end_under_tls()
    address = (made.ticket.host, made.ticket.port)
    with made.connect() as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" * 9)
        with contextlib.suppress(ConnectionResetError):
            while stranger.recv(100):  # an alert of TLS
                pass
    agent = tls.dial(address, AGENT, 5)
    assert agent.receive_by(9, time.monotonic() + 5) == b""
    agent.close()
    link = tls.dial(address, RANK, 5, made.ticket.fingerprint)
    link.send_all(made.sealer(1).seal("hello", host="h", pid=3), 5)
    assert made.events.get(timeout=5).message.fields == {"host": "h", "pid": 3}
    made.channel.send(1, "more", size=7)
    buffer = FrameBuffer()
    while (frame := buffer.take()) is None:
        buffer.feed(link.receive_by(1 << 14, time.monotonic() + 5))
    assert Opener(made.ticket.job, made.ticket.key, TO_RANK, range(1, 2)).open(*frame)[1].fields == {"size": 7}
    link.close()
    assert made.events.get(timeout=5) == Lost(1, CLOSED)
    made.channel.close()
    assert len(made.warnings) == 1
    assert "it does not speak TLS 1.3" in made.warnings[0]
