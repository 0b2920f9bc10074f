"""Connects each of several processes with each other one by TCP, authenticated. Carries no data.

Every process has a listener, whose address the others know. Each dials those with lower numbers and waits for those
with higher ones. Strangers may connect too: at most `STRANGERS` of them are heard at a time, none longer than
`STRANGER_TIMEOUT_S`, and none of them can prove to be one of the processes.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import selectors
import socket
import time
from collections.abc import Callable, Mapping

from tfdist.errors import PeerLostError
from tfdist.protocol.handshake import Acceptor, Dialer, Handshake, RefusedError
from tfdist.system.network import endpoint, tcp

STRANGERS = 64
STRANGER_TIMEOUT_S = 10.0
_BACKLOG = 1024
# Between two attempts to reach a process that does not listen yet, or that had too many strangers.
_RETRY_S = 0.05
_LONGEST_RETRY_S = 1.0
# What the system takes as the time of one wait, and as a number of milliseconds.
_LONGEST_S = 1e6
# How often to look whether the wait has lost its sense.
_LOOK_S = 0.02
# After which the user is told who is missing.
_QUIET_S = 5.0

_REMEDY = "Check that these ranks run and call tfdist.init(), and that no firewall blocks ports between the hosts."


def listen(address: str, port: int = 0) -> socket.socket:
    """A listening socket on this address alone, IPv4 or IPv6; port 0 is any free one."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def _has_ended(connection: socket.socket) -> bool:
    """Whether the other end has closed it; data may have come."""
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


class _Attempt:
    """A connection whose handshake is under way; `peer` is -1 until a stranger has named itself."""

    def __init__(self, connection: socket.socket, handshake: Handshake, until: float) -> None:
        self.socket, self.handshake, self.until = connection, handshake, until
        self.unsent = handshake.unsent


class Mesh:
    """The connections of one process to the others. Use once.

    Args:
        listener: This process's listener, which is closed when all have come; None if it only dials.
        own: The number of this process.
        peers: The addresses of all others, by number.
        key: What all of them share, and nobody else.
        context: What the connections are for, so that those of another job or channel are refused.
        timeout_s: How long to wait for the others.
        silence_limit_s: How long the other host may leave data unacknowledged before the connection counts as lost.
    """

    def __init__(
        self,
        listener: socket.socket | None,
        own: int,
        peers: Mapping[int, endpoint.Address],
        key: bytes,
        context: bytes,
        timeout_s: float,
        silence_limit_s: float,
    ) -> None:
        self._listener, self._own, self._peers = listener, own, peers
        self._report_at = math.inf
        self._key, self._context = key, context
        self._timeout_s, self._silence_limit_s = timeout_s, silence_limit_s
        self._selector = selectors.DefaultSelector()
        self._attempts: set[_Attempt] = set()
        self._found: dict[int, socket.socket] = {}
        # When to dial those that did not answer, how often that was tried, and why it failed.
        self._dial_at = dict.fromkeys((peer for peer in peers if peer < own), 0.0)
        self._tries: dict[int, int] = {}
        self._reasons: dict[int, str] = {}

    def connect(
        self, say: Callable[[str], None] = lambda _: None, lost: Callable[[], str] = str
    ) -> dict[int, socket.socket]:
        """Returns the connections by number: non-blocking, authenticated at both ends.

        Args:
            say: Called once with who is missing, if that takes longer than a few seconds.
            lost: Asked again and again why there is no sense in waiting, such as that one of them has ended; empty
                while there is.

        Raises:
            PeerLostError: If some could not be reached in time, or do not have the key.
        """
        deadline = time.monotonic() + self._timeout_s
        self._report_at = time.monotonic() + _QUIET_S
        if self._listener is not None:
            self._listener.setblocking(False)
            self._selector.register(self._listener, selectors.EVENT_READ)
        try:
            while len(self._found) < len(self._peers) or self._drop_ended():
                now = time.monotonic()
                if reason := lost():
                    raise PeerLostError(reason)
                if now >= deadline:
                    raise PeerLostError(f"{self._missing(self._timeout_s)} {_REMEDY}")
                if now >= self._report_at:
                    self._report_at = math.inf
                    say(f"still waiting: {self._missing(_QUIET_S)}")
                self._dial_due(now)
                for key, mask in self._selector.select(self._pause(now, deadline)):
                    if key.data is None:
                        self._accept()
                    elif key.data in self._attempts:
                        self._advance(key.data, mask)
                self._drop_late(time.monotonic())
        except BaseException:
            for connection in self._found.values():
                connection.close()
            raise
        finally:
            for attempt in self._attempts:
                attempt.socket.close()
            self._selector.close()
            if self._listener is not None:
                self._listener.close()
        return self._found

    def _pause(self, now: float, deadline: float) -> float:
        times = (deadline, self._report_at, *self._dial_at.values(), *(attempt.until for attempt in self._attempts))
        return min(_LOOK_S, max(0.0, min(times) - now))

    def _dial_due(self, now: float) -> None:
        for peer, at in list(self._dial_at.items()):
            if at <= now:
                del self._dial_at[peer]
                self._dial(peer, now)

    def _dial(self, peer: int, now: float) -> None:
        address = self._peers[peer]
        connection = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_STREAM)
        connection.setblocking(False)
        error = connection.connect_ex(address)
        attempt = _Attempt(connection, Dialer(self._key, self._context, self._own, peer), now + STRANGER_TIMEOUT_S)
        self._attempts.add(attempt)
        if error not in (0, errno.EINPROGRESS):
            self._give_up(attempt, os.strerror(error))
            return
        self._selector.register(connection, selectors.EVENT_WRITE, attempt)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # it is gone again, or no descriptor is free: the next round retries
        connection.setblocking(False)
        attempt = _Attempt(
            connection, Acceptor(self._key, self._context, self._own), time.monotonic() + STRANGER_TIMEOUT_S
        )
        strangers = [each for each in self._attempts if isinstance(each.handshake, Acceptor)]
        if len(strangers) >= STRANGERS + len(self._peers):
            self._drop(min(strangers, key=lambda each: each.until))
        self._attempts.add(attempt)
        self._selector.register(connection, selectors.EVENT_READ, attempt)

    def _advance(self, attempt: _Attempt, mask: int) -> None:
        try:
            if mask & selectors.EVENT_READ:
                data = attempt.socket.recv(attempt.handshake.wanted)
                if not data:
                    self._give_up(attempt, "it closed the connection")
                    return
                attempt.unsent += attempt.handshake.feed(data)
            while attempt.unsent:
                attempt.unsent = attempt.unsent[attempt.socket.send(attempt.unsent) :]
        except BlockingIOError:
            pass
        except OSError as error:
            self._give_up(attempt, error.strerror or str(error))
            return
        except RefusedError as refusal:
            self._refuse(attempt, str(refusal))
            return
        if attempt.handshake.done and not attempt.unsent:
            self._finish(attempt)
        else:
            waiting = selectors.EVENT_WRITE if attempt.unsent else selectors.EVENT_READ
            self._selector.modify(attempt.socket, waiting, attempt)

    def _finish(self, attempt: _Attempt) -> None:
        peer = attempt.handshake.peer
        self._selector.unregister(attempt.socket)
        self._attempts.discard(attempt)
        if peer in self._found and _has_ended(self._found[peer]):  # the peer gave up on it, and dialled again
            self._found.pop(peer).close()
        if peer not in self._peers or peer in self._found:
            attempt.socket.close()
            return
        # Nothing else notices that the other host is gone if its link is cut.
        tcp.keep_alive(attempt.socket, self._silence_limit_s)
        limit_ms = int(1000 * min(self._silence_limit_s, _LONGEST_S))
        attempt.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limit_ms)
        self._found[peer] = attempt.socket

    def _refuse(self, attempt: _Attempt, reason: str) -> None:
        """Nothing changes for a stranger; a peer that we dialled and that is not what it should be ends the wait."""
        peer = attempt.handshake.peer if isinstance(attempt.handshake, Dialer) else None
        self._drop(attempt)
        if peer is not None:
            raise PeerLostError(
                f"{self._named(peer)} was refused: {reason}. If there is a key file, it must be the same on all hosts."
            ) from None

    def _give_up(self, attempt: _Attempt, reason: str) -> None:
        """A peer is dialled again, since it may not listen yet."""
        peer = attempt.handshake.peer if isinstance(attempt.handshake, Dialer) else None
        self._drop(attempt)
        if peer is not None:
            self._reasons[peer] = reason
            tries = self._tries[peer] = self._tries.get(peer, 0) + 1
            self._dial_at[peer] = time.monotonic() + min(_RETRY_S * tries, _LONGEST_RETRY_S)

    def _drop(self, attempt: _Attempt) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(attempt.socket)
        attempt.socket.close()
        self._attempts.discard(attempt)

    def _drop_late(self, now: float) -> None:
        for attempt in [each for each in self._attempts if each.until <= now]:
            self._give_up(attempt, f"no answer within {STRANGER_TIMEOUT_S:g} s")

    def _named(self, peer: int) -> str:
        return f"rank {peer} at {endpoint.text(self._peers[peer])}"

    def _drop_ended(self) -> bool:
        """Drops connections that their other ends have given up; whether there were any."""
        ended = [peer for peer, connection in self._found.items() if _has_ended(connection)]
        for peer in ended:
            self._found.pop(peer).close()
            if peer < self._own:
                self._dial_at[peer] = 0.0
        return bool(ended)

    def _missing(self, waited_s: float) -> str:
        missing = sorted(set(self._peers) - set(self._found))
        each = "; ".join(_joined(self._named(peer), self._reasons.get(peer, "")) for peer in missing)
        return f"rank {self._own} waited {waited_s:g} s for connections with {each}."


def _joined(named: str, reason: str) -> str:
    return f"{named} ({reason})" if reason else named
