"""The one request that changes something: a worker is asked to drain. Its body, its proof, and who accepts it.

The body is JSON of three fields: the worker's address, the time and a number used once. Its HMAC-SHA256 by a shared key
comes in a header. What was recorded on the network cannot be sent again, to this worker or another, nor to one that has
been started again since.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import os
import secrets
import stat
from pathlib import Path

from tfdist.errors import ConfigError

HEADER = "X-Tfdist-Proof"
LARGEST_BODY_BYTES = 512
WINDOW_S = 60.0
_SMALLEST_KEY_BYTES, _LARGEST_KEY_BYTES = 16, 4096


def read_key(path: str) -> bytes:
    """The key in a file of ours that only its owner can read.

    Raises:
        ConfigError: As `read_secret`, or if it is too short to be one.
    """
    key = read_secret(path, _LARGEST_KEY_BYTES + 2).strip()
    if not _SMALLEST_KEY_BYTES <= len(key) <= _LARGEST_KEY_BYTES:
        raise ConfigError(
            f"key file {path} holds {len(key)} bytes; expected {_SMALLEST_KEY_BYTES} to {_LARGEST_KEY_BYTES}. Make "
            f"one: (umask 077; head -c 32 /dev/urandom | base64 > {Path(path).name})"
        )
    return key


def read_secret(path: str, most_bytes: int) -> bytes:
    """The first bytes of a file of ours that only its owner can read.

    Raises:
        ConfigError: If there is none, it belongs to another user, or others can read it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"key file {path} cannot be read: {error.strerror}.") from None
    try:
        found = os.fstat(descriptor)
        mode, owner = found.st_mode, found.st_uid
        if not stat.S_ISREG(mode):
            raise ConfigError(f"key file {path} is no file; expected one with mode 0600.")
        if mode & 0o077:
            raise ConfigError(f"key file {path} has mode {stat.S_IMODE(mode):04o}; expected 0600: chmod 600 {path}")
        if owner not in (0, os.geteuid()):  # root could put anything there anyway
            raise ConfigError(
                f"key file {path} belongs to user {owner}; this process runs as {os.geteuid()}, and expects a file of "
                f"its own or root's. Copy it: (umask 077; cp FILE ~/{Path(path).name})"
            )
        return os.read(descriptor, most_bytes)
    finally:
        os.close(descriptor)


def compose(key: bytes, worker: str, now: float) -> tuple[bytes, str]:
    """Body and proof of a request to drain `worker` ("HOST:PORT") at this Unix time."""
    body = json.dumps({"worker": worker, "time": math.ceil(now * 1000) / 1000, "nonce": secrets.token_hex(16)}).encode()
    return body, _proof(key, body)


class Gatekeeper:
    """Accepts each genuine request once.

    Args:
        key: The shared key.
        worker: "HOST:PORT" of the worker it guards.
        started: Unix time of its start; what is older may have been accepted by its predecessor.
    """

    def __init__(self, key: bytes, worker: str, started: float) -> None:
        self._key, self._worker, self._started = key, worker, started
        self._seen: dict[str, float] = {}

    def refusal(self, body: bytes, proof: str, now: float) -> str:
        """Why a request is refused; empty if it is accepted."""
        if not hmac.compare_digest(_proof(self._key, body).encode(), proof.encode()):
            return "the proof does not belong to this body and key; do both sides have the same key file?"
        fields = json.loads(body)  # whoever has the key wrote it
        if fields["worker"] != self._worker:
            return f"the request is for {fields['worker']}; this is {self._worker}"
        if abs(now - fields["time"]) > WINDOW_S:
            return (
                f"the request is {now - fields['time']:.0f} s old; expected within {WINDOW_S:g} s: compare the clocks"
            )
        if fields["time"] < self._started:
            return (
                f"the request was made {self._started - fields['time']:.0f} s before this worker started, and may have "
                "been sent to the one before; send a new one, and compare the clocks"
            )
        self._seen = {nonce: time for nonce, time in self._seen.items() if abs(now - time) <= WINDOW_S}
        if fields["nonce"] in self._seen:
            return "the request was sent before"
        self._seen[fields["nonce"]] = fields["time"]
        return ""


def _proof(key: bytes, body: bytes) -> str:
    return hmac.new(key, body, hashlib.sha256).hexdigest()
