"""Mutual authentication of two processes that share a key, over a connection between them. Sends and receives nothing.

The two ends exchange four messages; integers are big-endian:

1. dialer to acceptor: "tfdist-1" (8 bytes), the numbers of dialer and acceptor (4 each), 32 random bytes;
2. acceptor to dialer: 32 random bytes, the acceptor's proof (32);
3. dialer to acceptor: the dialer's proof (32);
4. acceptor to dialer: a byte, so that a dialer that was dropped in between knows.

A proof is the HMAC-SHA256 of the role, the context, both numbers and both random values, a challenge-response as in
ISO/IEC 9798-4. The random values make each proof useless in any other connection, the role makes it useless at the
other end, and the context (job, epoch, channel, certificate) in any other place. The key never travels.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct

_NAME = b"tfdist-1"
_HELLO = struct.Struct("!8sII32s")
_RANDOM_BYTES = _PROOF_BYTES = 32
_WELCOME = b"\1"


class RefusedError(Exception):
    """The other end does not speak this protocol, has another key, or is somebody else. The text does not name it."""


class Handshake:
    """One end. Send `unsent`; until `done`, read at most `wanted` bytes, pass them to `feed`, send what it returns.

    Never read more than `wanted`: what follows the last message belongs to the connection's users.

    Attributes:
        peer: The number of the other end; known to a dialer, and to an acceptor once it is done.
        done: Whether the other end has proven that it has the key.
    """

    unsent: bytes = b""

    def __init__(self, key: bytes, context: bytes, own: int) -> None:
        self._key, self._context, self._own = key, context, own
        self._random = secrets.token_bytes(_RANDOM_BYTES)
        self._buffer = bytearray()
        self.peer = -1
        self.done = False

    @property
    def wanted(self) -> int:
        """How many bytes of the expected message are missing."""
        return self._expected - len(self._buffer)

    @property
    def secret(self) -> bytes:
        """When done: a key that only these two ends have, and only for this connection."""
        return self._sign(b"session")

    def feed(self, data: bytes) -> bytes:
        """Takes the next bytes from the other end, at most `wanted`; returns what to send to it.

        Raises:
            RefusedError: If they are not what the protocol expects.
        """
        self._buffer += data
        if self.wanted > 0:
            return b""
        message = bytes(self._buffer)
        self._buffer.clear()
        return self._take(message)

    # Of the message that comes next.
    _expected = 0

    def _take(self, message: bytes) -> bytes:
        raise NotImplementedError

    def _sign(self, role: bytes) -> bytes:
        raise NotImplementedError

    def _signed(self, role: bytes, numbers: tuple[int, int], random: tuple[bytes, bytes]) -> bytes:
        text = struct.pack("!II", *numbers) + b"".join(random) + struct.pack("!I", len(role)) + role + self._context
        return hmac.new(self._key, text, hashlib.sha256).digest()

    def _check(self, proof: bytes, role: bytes) -> None:
        if not hmac.compare_digest(proof, self._sign(role)):
            raise RefusedError("it does not have this job's key")


class Dialer(Handshake):
    """The end that has made the connection, to the process with the number `peer`."""

    _expected = _RANDOM_BYTES + _PROOF_BYTES

    def __init__(self, key: bytes, context: bytes, own: int, peer: int) -> None:
        super().__init__(key, context, own)
        self.peer = peer
        self._theirs = b""
        self.unsent = _HELLO.pack(_NAME, own, peer, self._random)

    def _take(self, message: bytes) -> bytes:
        if self._theirs:
            self.done = True
            return b""
        self._theirs = message[:_RANDOM_BYTES]
        self._check(message[_RANDOM_BYTES:], b"acceptor")
        self._expected = len(_WELCOME)
        return self._sign(b"dialer")

    def _sign(self, role: bytes) -> bytes:
        return self._signed(role, (self._own, self.peer), (self._random, self._theirs))


class Acceptor(Handshake):
    """The end that has accepted the connection."""

    _expected = _HELLO.size

    def __init__(self, key: bytes, context: bytes, own: int) -> None:
        super().__init__(key, context, own)
        self._theirs = b""

    def _take(self, message: bytes) -> bytes:
        if self.peer >= 0:
            self._check(message, b"dialer")
            self.done = True
            return _WELCOME
        name, peer, meant, self._theirs = _HELLO.unpack(message)
        if name != _NAME:
            raise RefusedError("it does not speak this protocol")
        if meant != self._own:
            raise RefusedError(f"it looks for number {meant}, and this is {self._own}")
        self.peer, self._expected = peer, _PROOF_BYTES
        return self._random + self._sign(b"acceptor")

    def _sign(self, role: bytes) -> bytes:
        return self._signed(role, (self.peer, self._own), (self._theirs, self._random))


def derived(key: bytes, purpose: str) -> bytes:
    """A key for one purpose, from which nobody can compute the other one."""
    return hmac.new(key, b"tfdist " + purpose.encode(), hashlib.sha256).digest()
