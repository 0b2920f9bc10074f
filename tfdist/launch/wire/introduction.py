"""How launcher and agent prove to each other, over TLS, that they have the same key; then frames go both ways."""

from __future__ import annotations

import hashlib
import time

from tfdist.launch.wire.link import Link
from tfdist.launch.wire.record import FROM_AGENT, TO_AGENT, FrameBuffer, Message, Opener, Sealer
from tfdist.launch.wire.tls import TlsLink
from tfdist.protocol.handshake import Acceptor, Dialer, Handshake, derived

# The numbers of the two in the handshake, and of the agent in frames.
_LAUNCHER, _AGENT = 0, 1
_PURPOSE = "agents"
# All that an agent says is short, so a stranger who says more is refused early.
OFFER_LIMIT_BYTES = 4096
_READ_BYTES = 1 << 16


def acceptor(key: bytes, fingerprint: bytes) -> Acceptor:
    """The launcher's end; `fingerprint` is that of its own certificate."""
    return Acceptor(derived(key, _PURPOSE), _context(fingerprint), _LAUNCHER)


def prove(link: TlsLink, key: bytes, timeout_s: float) -> Conversation:
    """Runs the agent's end.

    Raises:
        RefusedError: If the launcher has another key, or somebody in between another certificate.
        OSError: If the connection ends, or takes too long.
    """
    deadline, handshake = time.monotonic() + timeout_s, _dialer(key, link)
    link.send_all(handshake.unsent, timeout_s)
    while not handshake.done:
        data = link.receive_by(handshake.wanted, deadline)
        if not data:
            raise ConnectionResetError("it closed the connection")
        link.send_all(handshake.feed(data), timeout_s)
    return Conversation(link, handshake, TO_AGENT)


def _dialer(key: bytes, link: TlsLink) -> Dialer:
    return Dialer(derived(key, _PURPOSE), _context(link.fingerprint()), _AGENT, _LAUNCHER)


def _context(fingerprint: bytes) -> bytes:
    return b"agent" + fingerprint


class Conversation:
    """Frames over a link whose handshake is done, with the key that only the two ends of this connection have.

    Args:
        link: The connection.
        handshake: What was done on it.
        incoming: The direction of what is received here.
    """

    def __init__(self, link: Link, handshake: Handshake, incoming: str) -> None:
        self.link = link
        job = hashlib.sha256(handshake.secret).hexdigest()
        outgoing = FROM_AGENT if incoming == TO_AGENT else TO_AGENT
        self._opener = Opener(job, handshake.secret, incoming, range(_AGENT, _AGENT + 1))
        self._sealer = Sealer(job, handshake.secret, outgoing, _AGENT)
        self._buffer = FrameBuffer() if incoming == TO_AGENT else FrameBuffer(OFFER_LIMIT_BYTES)

    def send(self, timeout_s: float, kind: str, **fields: object) -> None:
        """Raises OSError."""
        self.link.send_all(self._sealer.seal(kind, **fields), timeout_s)

    def receive(self) -> list[Message]:
        """The messages that have come, after the link became readable.

        Raises:
            RefusedFrameError: If they are not those of the other end.
            EOFError: If the connection has ended.
            OSError: If it is broken.
        """
        try:
            data = self.link.receive(_READ_BYTES)
        except BlockingIOError:
            return []
        if not data:
            raise EOFError
        self._buffer.feed(data)
        found = []
        while (frame := self._buffer.take()) is not None:
            found.append(self._opener.open(*frame)[1])
        return found
