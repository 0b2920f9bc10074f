"""The launcher's end of the connections to the ranks' supervisors: accepts and authenticates them."""

from __future__ import annotations

import contextlib
import math
import queue
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tfdist.launch.job.outcome import CLOSED, silence
from tfdist.launch.job.pulse import Pulse
from tfdist.launch.wire.link import AGENT, Link
from tfdist.launch.wire.record import TO_LAUNCHER, TO_RANK, FrameBuffer, Message, Opener, RefusedFrameError, Sealer
from tfdist.launch.wire.ticket import Ticket
from tfdist.system.network.endpoint import text
from tfdist.system.network.tcp import keep_alive
from tfdist.system.terminal.line import Piece

SEND_TIMEOUT_S = 5.0
# An unauthenticated peer gets little time and memory; a rank sends its first message at once.
STRANGER_TIMEOUT_S = 10.0
STRANGER_LIMIT_BYTES = 4096
_STRANGERS = 64
_READ_BYTES = 1 << 16
_WINDOW_BYTES, _ALL_WINDOWS_BYTES = 1 << 20, 1 << 26


@dataclass(frozen=True)
class Received:
    """An event: a message from a rank, other than output. `address` is the address of its host."""

    rank: int
    message: Message
    address: str


@dataclass(frozen=True)
class Lost:
    """An event: a rank's connection ended. `how` continues "host x", as in "host x closed its connection"."""

    rank: int
    how: str


@dataclass(frozen=True)
class Broken:
    """An event: the channel itself failed."""

    error: Exception


def window(size: int) -> int:
    """Bytes of output that each of `size` ranks may have in flight."""
    return min(_WINDOW_BYTES, max(_ALL_WINDOWS_BYTES // size, _READ_BYTES))


class _Connection:
    def __init__(self, link: Link, address: tuple[str, int]) -> None:
        self.link, self.address, self.peer = link, address, text(address)
        self.is_open = False
        self.rank: int | None = None
        self.since = time.monotonic()
        self.buffer = FrameBuffer(STRANGER_LIMIT_BYTES)


class Channel:
    """One thread that reads all connections. Events go to a queue, output and results straight to `write` and `keep`.

    Each rank may have at most one window of output in flight: `grant` reports that some of it has been written, so that
    the rank may send more. If the launcher's output is not read, this slows the ranks down, as any pipe does, but the
    launcher still learns how they end.

    Args:
        listener: A listening socket; the channel closes it.
        ticket: The job's key and name.
        size: Number of ranks.
        events: Where events go.
        write: Called with (rank, stream, piece).
        warn: Called once, with a message about a refused connection.
        keep: Called with (rank, part of its result), and may refuse it; None if no result is expected.
    """

    def __init__(
        self,
        listener: socket.socket,
        ticket: Ticket,
        size: int,
        events: queue.SimpleQueue[Any],
        write: Callable[[int, str, Piece], None],
        warn: Callable[[str], None],
        keep: Callable[[int, str], None] | None = None,
    ) -> None:
        self._listener, self._events, self._write, self._warn = listener, events, write, warn
        self._keep = keep
        self._size = size
        self._opener = Opener(ticket.job, ticket.key, TO_LAUNCHER, range(size))
        self._ticket = ticket
        self._sealers = [Sealer(ticket.job, ticket.key, TO_RANK, rank) for rank in range(size)]
        self._sending = threading.Lock()
        self.window = window(size)
        self._granted = [0] * size
        self._ranks: dict[int, _Connection] = {}
        self._strangers: list[_Connection] = []
        self._warned = False
        self._closing = False
        self._selector = selectors.DefaultSelector()
        self._wake, self._waker = socket.socketpair()
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._pulse = Pulse(math.inf)
        self._secure: Callable[[socket.socket], Link] = Link
        self._pass_on: Callable[[Link, tuple[str, int]], None] | None = None
        self._thread = threading.Thread(target=self._run, name="tfdistrun-channel", daemon=True)

    @property
    def port(self) -> int:
        """Where the ranks come."""
        return int(self._listener.getsockname()[1])

    def grow(self, count: int) -> None:
        """So many more ranks may come. Thread-safe."""
        with self._sending:
            more = range(self._size, self._size + count)
            self._sealers += [Sealer(self._ticket.job, self._ticket.key, TO_RANK, rank) for rank in more]
            self._granted += [0] * count
            self._opener.admit(more)
            self._size = more.stop

    def start(
        self,
        silence_limit_s: float,
        secure: Callable[[socket.socket], Link] = Link,
        pass_on: Callable[[Link, tuple[str, int]], None] | None = None,
    ) -> None:
        """Starts reading.

        Args:
            silence_limit_s: The silence after which a rank that has started counts as lost.
            secure: Makes the link of a connection that was accepted.
            pass_on: Called with the open link of an agent, and where it comes from; None if no more agents may come.
        """
        self._secure, self._pass_on = secure, pass_on
        self._pulse = Pulse(silence_limit_s)
        self._thread.start()

    def send(self, rank: int, kind: str, **fields: Any) -> None:
        """Sends to a rank that has said hello; one that is gone shows as `Lost`, never as an exception."""
        if (connection := self._ranks.get(rank)) is not None:
            with contextlib.suppress(OSError), self._sending:
                connection.link.send_all(self._sealers[rank].seal(kind, **fields), SEND_TIMEOUT_S)

    def grant(self, rank: int, size: int) -> None:
        """Notes that this much of a rank's output has been written. Thread-safe."""
        if rank >= self._size:  # from an earlier, larger generation
            return
        with self._sending:
            self._granted[rank] += size
            due = self._granted[rank] if self._granted[rank] >= self.window // 4 else 0
            self._granted[rank] -= due
        if due:
            self.send(rank, "more", size=due)

    def close(self, timeout_s: float = 2.0) -> None:
        """Stops the thread and closes the connections. Supervisors that still run take that as the end of the job."""
        self._closing = True
        with contextlib.suppress(OSError):
            self._waker.send(b"x")
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        for connection in [*self._ranks.values(), *self._strangers]:
            connection.link.close()
        self._listener.close()
        if not self._thread.is_alive():  # otherwise it waits for a reader of its output, and ends with the process
            self._selector.close()
            self._wake.close()
            self._waker.close()

    def _run(self) -> None:
        try:
            before = time.monotonic()
            while not self._closing:
                for key, _ in self._selector.select(timeout=self._pulse.step_s):
                    if key.fileobj is self._listener:
                        self._accept()
                    elif isinstance(key.data, _Connection):
                        self._read(key.data)
                self._drop_old_strangers()
                now = time.monotonic()
                self._drop_silent_ranks(now - before)
                before = now
        except Exception as error:  # noqa: BLE001  (whatever it is, the launcher has to end the job)
            self._events.put(Broken(error))

    def _accept(self) -> None:
        try:
            accepted, address = self._listener.accept()
        except OSError:
            return  # it is gone again, or no descriptor is free: the next round retries
        try:
            keep_alive(accepted, self._pulse.limit_s)
            connection = _Connection(self._secure(accepted), address[:2])
        except OSError:  # it is gone again
            accepted.close()
            return
        self._strangers.append(connection)
        self._selector.register(connection.link.connection, selectors.EVENT_READ, connection)
        if len(self._strangers) > self._size + _STRANGERS:
            self._refuse(self._strangers[0], "too many connections are waiting to authenticate")

    def _open(self, connection: _Connection) -> bool:
        """Continues the handshake of a link, if it has one; whether the connection is somebody else's now."""
        waits_for = connection.link.shake()
        self._selector.modify(connection.link.connection, waits_for or selectors.EVENT_READ, connection)
        connection.is_open = not waits_for
        if connection.link.protocol != AGENT:
            return False
        if self._pass_on is None:
            raise RefusedFrameError("an agent, but all agents of this job are here")
        if connection.is_open:
            self._selector.unregister(connection.link.connection)
            self._strangers.remove(connection)
            self._pass_on(connection.link, connection.address)
        return connection.is_open

    def _read(self, connection: _Connection) -> None:
        try:
            if not connection.is_open and self._open(connection):
                return
            data = connection.link.receive(_READ_BYTES) if connection.is_open else None
        except BlockingIOError:
            return
        except RefusedFrameError as refusal:
            self._refuse(connection, str(refusal))
            return
        except ConnectionResetError:
            data = b""
        except OSError as error:
            self._drop(connection, f"can no longer be reached: {error.strerror}")
            return
        if data is None:
            return
        if not data:
            self._drop(connection, CLOSED)
            return
        if connection.rank is not None:
            self._pulse.hear(connection.rank)
        connection.buffer.feed(data)
        try:
            while (frame := connection.buffer.take()) is not None:
                self._deliver(connection, *self._opener.open(*frame))
        except RefusedFrameError as refusal:
            self._refuse(connection, str(refusal))

    def _deliver(self, connection: _Connection, rank: int, message: Message) -> None:
        if connection.rank is None:
            if message.kind != "hello":
                raise RefusedFrameError("the first message is not hello")
            connection.rank, connection.buffer.limit_bytes = rank, FrameBuffer().limit_bytes
            self._strangers.remove(connection)
            self._ranks[rank] = connection
        elif rank != connection.rank or message.kind == "hello":
            raise RefusedFrameError(f"the connection of rank {connection.rank} speaks for another")
        if message.kind == "alive":
            return
        if message.kind == "started":
            self._pulse.watch(rank)  # until then the start timeout applies
        if message.kind == "output":
            fields = message.fields
            if fields["stream"] not in ("stdout", "stderr"):
                raise RefusedFrameError("output of an unknown stream")
            try:
                text = fields["text"].encode(errors="surrogateescape")
            except UnicodeEncodeError:
                raise RefusedFrameError("output that is neither text nor bytes") from None
            self._write(rank, fields["stream"], Piece(text, fields["end"]))
        elif message.kind == "result":
            if self._keep is None:
                raise RefusedFrameError("an unexpected result")
            self._keep(rank, message.fields["data"])
        else:
            self._events.put(Received(rank, message, connection.address[0]))

    def _refuse(self, connection: _Connection, reason: str) -> None:
        if not self._warned:
            self._warned = True
            self._warn(f"refused a connection from {connection.peer}: {reason}; further refusals are not reported")
        self._drop(connection, f"sent an invalid message: {reason}")

    def _drop(self, connection: _Connection, how: str) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection.link.connection)
        connection.link.close()
        if connection in self._strangers:
            self._strangers.remove(connection)
        if connection.rank is not None and self._ranks.get(connection.rank) is connection:
            del self._ranks[connection.rank]
            self._pulse.forget(connection.rank)
            self._events.put(Lost(connection.rank, how))

    def _drop_silent_ranks(self, elapsed_s: float) -> None:
        for rank in self._pulse.advance(elapsed_s):
            how = silence(self._pulse.limit_s)
            self._drop(self._ranks[rank], how)

    def _drop_old_strangers(self) -> None:
        limit = time.monotonic() - STRANGER_TIMEOUT_S
        for connection in [stranger for stranger in self._strangers if stranger.since < limit]:
            self._refuse(connection, f"it did not authenticate within {STRANGER_TIMEOUT_S:g} s")
