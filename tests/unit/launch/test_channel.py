"""Tests of tfdist.launch.channel, over real loopback sockets."""

from __future__ import annotations

import queue
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tfdist.launch import record
from tfdist.launch.channel import STRANGER_LIMIT_BYTES, Channel, Lost, Received
from tfdist.launch.line import Piece
from tfdist.launch.record import TO_LAUNCHER, TO_RANK, FrameBuffer, Opener, RefusedFrameError, Sealer
from tfdist.launch.ticket import Ticket


class End:
    """Both sides: the channel and what it delivers, and connections of ranks."""

    def __init__(self, keep: Any = None) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.ticket = Ticket.issue(*listener.getsockname())
        self.events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.output: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.warnings: list[str] = []
        self.channel = Channel(
            listener, self.ticket, 3, self.events, lambda *words: self.output.put(words), self.warnings.append, keep
        )
        self.channel.start()

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
        assert (event.rank, event.message.fields) == (1, {"host": "h", "pid": 3})
        end.channel.send(1, "run", command=["x"])
        buffer = FrameBuffer()
        while (frame := buffer.take()) is None:
            buffer.feed(connection.recv(4096))
        opened = Opener(end.ticket.job, end.ticket.key, TO_RANK, range(1, 2)).open(*frame)[1]
        assert opened.fields == {"command": ["x"]}
        connection.sendall(sealer.seal("output", stream="stderr", text="é\udc80" * 9000, end="line"))
        assert end.output.get(timeout=5) == (1, "stderr", Piece(b"\xc3\xa9\x80" * 9000, "line"))
    assert end.events.get(timeout=5) == Lost(1)
    end.channel.send(1, "release")
    assert end.warnings == []


def test_refused_and_reported_once(end: End) -> None:
    hello = end.sealer(0).seal("hello", host="h", pid=1)
    large = end.sealer(0).seal("hello", host="h" * STRANGER_LIMIT_BYTES, pid=1)
    stranger = end.sealer(0, key=bytes(32)).seal("hello", host="h", pid=1)
    early = end.sealer(2).seal("started", pid=1)
    for data in (b"GET / HTTP/1.1\r\n" * 9, stranger, large, early, hello[:4] + b"x" + hello[5:]):
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


def test_rank_cannot_speak_for_another(end: End) -> None:
    with end.connect() as connection:
        connection.sendall(end.sealer(0).seal("hello", host="h", pid=1) + end.sealer(1).seal("hello", host="h", pid=1))
        assert isinstance(end.events.get(timeout=5), Received)
        assert end.events.get(timeout=5) == Lost(0)
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
    assert made.events.get(timeout=5) == Lost(1)
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
        assert made.events.get(timeout=5) == Lost(1)
        assert _refused(connection)
    made.channel.close()
    assert kept == [(1, "eA==")]
    assert len(made.warnings) == 1


def test_result_that_nobody_asked_for(end: End) -> None:
    sealer = end.sealer(0)
    with end.connect() as connection:
        connection.sendall(sealer.seal("hello", host="h", pid=1) + sealer.seal("result", data="eA=="))
        assert _refused(connection)
    assert "nobody asked for" in end.warnings[0]


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
