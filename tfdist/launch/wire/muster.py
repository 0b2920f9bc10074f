"""Waits at the launcher's port for agents that have the key. What they offer is accepted or refused by the caller.

Strangers change nothing: at most `STRANGERS` of them are heard at a time, none longer than `STRANGER_TIMEOUT_S`.
"""

from __future__ import annotations

import contextlib
import queue
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tfdist.errors import ConfigError
from tfdist.launch.wire.agents import SEND_TIMEOUT_S
from tfdist.launch.wire.channel import STRANGER_TIMEOUT_S
from tfdist.launch.wire.introduction import Conversation, acceptor
from tfdist.launch.wire.record import FROM_AGENT, Message, RefusedFrameError
from tfdist.launch.wire.tls import Identity, TlsLink
from tfdist.protocol.handshake import Acceptor, RefusedError
from tfdist.system.network.endpoint import text
from tfdist.system.network.tcp import keep_alive

STRANGERS = 64
# Until the job has its own limit, which is this one unless the user has set another.
_SILENCE_LIMIT_S = 30.0
_LONGEST_WAIT_S = 1.0
_JOIN_S = 2.0
_OTHER_KEY = "it left during the handshake, as an agent does whose key file is another one"


@dataclass
class Recruit:
    """An agent that has the key. `host` is how it calls its host, `address` where it came from.

    Those with the same `machine` share it; empty if it does not say.
    """

    conversation: Conversation = field(repr=False)
    address: str
    host: str
    slots: int
    version: str
    python: str
    machine: str = ""


class _Arrival:
    """A connection whose other end is unknown, or an agent that waits."""

    def __init__(self, link: TlsLink, address: tuple[str, int], handshake: Acceptor) -> None:
        self.link, self.address, self.handshake = link, address, handshake
        self.until = time.monotonic() + STRANGER_TIMEOUT_S
        self.is_open = False
        self.conversation: Conversation | None = None
        self.recruit: Recruit | None = None


class Muster:
    """Serves a listener until enough agents have come. Use from one thread.

    Args:
        listener: The launcher's port; stays open.
        identity: The certificate.
        key: What agents must have.
        judge: Called with each agent that has the key; returns why it is refused, empty to keep it. May raise.
        warn: Called with a message when a connection is refused, the first time only.
    """

    def __init__(
        self,
        listener: socket.socket,
        identity: Identity,
        key: bytes,
        judge: Callable[[Recruit], str],
        warn: Callable[[str], None],
    ) -> None:
        self._listener, self._identity, self._key, self._judge, self._warn = listener, identity, key, judge, warn
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        # In the order in which they came.
        self._arrivals: list[_Arrival] = []
        self._warned = False

    @property
    def recruits(self) -> list[Recruit]:
        """The agents that were accepted and are still there."""
        return [each.recruit for each in self._arrivals if each.recruit is not None]

    def step(self) -> None:
        """Handles what comes next; returns after a second at the latest."""
        now = time.monotonic()
        times = [each.until - now for each in self._arrivals if each.recruit is None]
        for key, _ in self._selector.select(max(0.0, min([_LONGEST_WAIT_S, *times]))):
            if key.fileobj is self._listener:
                self._accept()
            elif key.data in self._arrivals:
                self._advance(key.data)
        for late in [each for each in self._arrivals if each.recruit is None and each.until <= time.monotonic()]:
            self._refuse(late, f"it did not authenticate within {STRANGER_TIMEOUT_S:g} s")

    def close(self, reason: str = "", status: int = 1) -> None:
        """Stops listening for agents. With a reason, those that wait are told it, and end with `status`."""
        for each in list(self._arrivals):
            if each.recruit is None or reason:
                if each.recruit is not None:
                    dismiss(each.recruit, status, reason)
                self._drop(each)
        self._selector.close()

    def _accept(self) -> None:
        try:
            accepted, address = self._listener.accept()
        except OSError:
            return  # it is gone again, or no descriptor is free: the next round retries
        try:
            keep_alive(accepted, _SILENCE_LIMIT_S)
            link = self._identity.accept(accepted)
        except OSError:  # it is gone again
            accepted.close()
            return
        self._receive(_Arrival(link, address[:2], acceptor(self._key, self._identity.fingerprint)))

    def _receive(self, arrival: _Arrival) -> None:
        strangers = [each for each in self._arrivals if each.recruit is None]
        if len(strangers) >= STRANGERS:
            self._refuse(strangers[0], "too many connections are waiting to authenticate")
        self._arrivals.append(arrival)
        self._selector.register(arrival.link.connection, selectors.EVENT_READ, arrival)

    def _advance(self, arrival: _Arrival) -> None:
        try:
            if not arrival.is_open:
                waits_for = arrival.link.shake()
                self._selector.modify(arrival.link.connection, waits_for or selectors.EVENT_READ, arrival)
                arrival.is_open = not waits_for
            if arrival.is_open and arrival.conversation is None:
                self._shake_hands(arrival)
            if arrival.conversation is not None:
                for message in arrival.conversation.receive():
                    self._hear(arrival, arrival.conversation, message)
        except BlockingIOError:
            return
        except (RefusedFrameError, RefusedError) as refusal:
            self._refuse(arrival, str(refusal))
        except (EOFError, OSError):
            if arrival.is_open and arrival.handshake.peer >= 0 and arrival.conversation is None:
                self._refuse(arrival, _OTHER_KEY)
            else:
                self._drop(arrival)

    def _shake_hands(self, arrival: _Arrival) -> None:
        handshake = arrival.handshake
        while not handshake.done:
            data = arrival.link.receive(handshake.wanted)
            if not data:
                raise EOFError
            # 64 bytes on a new connection: they fit.
            arrival.link.send_all(handshake.feed(data), SEND_TIMEOUT_S)
        arrival.conversation = Conversation(arrival.link, handshake, FROM_AGENT)

    def _hear(self, arrival: _Arrival, conversation: Conversation, message: Message) -> None:
        if message.kind == "withdrawn" and arrival.recruit is not None:
            raise EOFError
        if message.kind != "offer" or arrival.recruit is not None:
            raise RefusedFrameError("an agent that says something else than its offer")
        recruit = Recruit(conversation, arrival.address[0], **message.fields)
        try:
            reason = self._judge(recruit)
        except ConfigError as error:
            dismiss(recruit, 2, str(error))
            raise
        if reason:
            dismiss(recruit, 1, reason)
            self._drop(arrival)
        else:
            arrival.recruit = recruit

    def _refuse(self, arrival: _Arrival, reason: str) -> None:
        if not self._warned:
            self._warned = True
            self._warn(
                f"refused a connection from {text(arrival.address)}: {reason}; further refusals are not reported"
            )
        self._drop(arrival)

    def _release(self, arrival: _Arrival) -> None:
        """It is somebody else's."""
        self._selector.unregister(arrival.link.connection)
        self._arrivals.remove(arrival)

    def _drop(self, arrival: _Arrival) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(arrival.link.connection)
        arrival.link.close()
        if arrival in self._arrivals:
            self._arrivals.remove(arrival)


class Lobby(Muster):
    """Agents that come while a job runs: connections that others have accepted, served by a thread of its own.

    Args:
        identity: The certificate.
        key: What agents must have.
        judge: As for Muster.
        warn: As for Muster.
        admit: Called with each agent that is accepted, which is the caller's from then on.
    """

    def __init__(
        self,
        identity: Identity,
        key: bytes,
        judge: Callable[[Recruit], str],
        warn: Callable[[str], None],
        admit: Callable[[Recruit], None],
    ) -> None:
        wake, self._waker = socket.socketpair()
        super().__init__(wake, identity, key, judge, warn)
        self._admit, self._is_closing = admit, False
        self._passed_on: queue.SimpleQueue[_Arrival | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="tfdistrun-lobby", daemon=True)
        self._thread.start()

    def pass_on(self, link: TlsLink, address: tuple[str, int]) -> None:
        """Takes over an open connection. Thread-safe."""
        arrival = _Arrival(link, address, acceptor(self._key, self._identity.fingerprint))
        arrival.is_open = True
        self._passed_on.put(arrival)
        self._waker.send(b"x")

    def close(self, reason: str = "", status: int = 1) -> None:
        """Stops the thread; who has not been accepted is dropped."""
        self._passed_on.put(None)
        self._waker.send(b"x")
        self._thread.join(_JOIN_S)
        super().close(reason, status)
        self._listener.close()
        self._waker.close()

    def _serve(self) -> None:
        while not self._is_closing:
            self.step()
            for arrival in [each for each in self._arrivals if each.recruit is not None]:
                self._release(arrival)
                assert arrival.recruit is not None
                self._admit(arrival.recruit)

    def _accept(self) -> None:
        self._listener.recv(1)
        arrival = self._passed_on.get()
        if arrival is None:
            self._is_closing = True
            return
        self._receive(arrival)
        self._advance(arrival)  # what came behind the handshake of TLS is in no socket any more


def dismiss(recruit: Recruit, status: int, reason: str) -> None:
    """Tells an agent to end. One that is gone needs not be told."""
    with contextlib.suppress(OSError):
        recruit.conversation.send(SEND_TIMEOUT_S, "over", status=status, reason=reason)
