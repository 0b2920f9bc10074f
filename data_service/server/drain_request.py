"""The request to drain a worker, the only one that changes anything: its body, its signature, and its verification.

The body is JSON with three fields: the worker's address, the time and a nonce. A header carries its HMAC-SHA256 with a
shared key. A request recorded on the network cannot be replayed to this worker or another, nor to one that has been
restarted since.
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
    """The key from a file that only its owner can read.

    Raises:
        ConfigError: As `read_secret`, or if the key has the wrong length.
    """
    key = read_secret(path, _LARGEST_KEY_BYTES + 2).strip()
    if not _SMALLEST_KEY_BYTES <= len(key) <= _LARGEST_KEY_BYTES:
        raise ConfigError(
            f"key file {path} holds {len(key)} bytes; expected {_SMALLEST_KEY_BYTES} to {_LARGEST_KEY_BYTES}. Create "
            f"one with: (umask 077; head -c 32 /dev/urandom | base64 > {Path(path).name})"
        )
    return key


def read_secret(path: str, most_bytes: int) -> bytes:
    """The first bytes of a file that only its owner can read.

    Raises:
        ConfigError: If the file is missing, belongs to another user, or can be read by others.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"key file {path} cannot be read: {error.strerror}.") from None
    try:
        found = os.fstat(descriptor)
        mode, owner = found.st_mode, found.st_uid
        if not stat.S_ISREG(mode):
            raise ConfigError(f"key file {path} is not a regular file; expected one with mode 0600.")
        if mode & 0o077:
            raise ConfigError(
                f"key file {path} has mode {stat.S_IMODE(mode):04o}; expected 0600. Fix it with: chmod 600 {path}"
            )
        if owner not in (0, os.geteuid()):  # root could put anything there anyway
            raise ConfigError(
                f"key file {path} belongs to user {owner}; this process runs as user {os.geteuid()} and expects a "
                f"file owned by that user or root. Copy it: (umask 077; cp FILE ~/{Path(path).name})"
            )
        return os.read(descriptor, most_bytes)
    finally:
        os.close(descriptor)


def compose(key: bytes, worker: str, now: float) -> tuple[bytes, str]:
    """Body and signature of a request to drain `worker` ("HOST:PORT") at this Unix time."""
    body = json.dumps({"worker": worker, "time": math.ceil(now * 1000) / 1000, "nonce": secrets.token_hex(16)}).encode()
    return body, _proof(key, body)


class Gatekeeper:
    """Accepts each genuine request once.

    Args:
        key: The shared key.
        worker: "HOST:PORT" of the worker it guards.
        started: Unix time of its start; an older request may have been accepted by its predecessor.
    """

    def __init__(self, key: bytes, worker: str, started: float) -> None:
        self._key, self._worker, self._started = key, worker, started
        self._seen: dict[str, float] = {}

    def refusal(self, body: bytes, proof: str, now: float) -> str:
        """Why a request is rejected; empty if it is accepted."""
        if not hmac.compare_digest(_proof(self._key, body).encode(), proof.encode()):
            return "the signature does not match this body and key; do both sides have the same key file?"
        fields = json.loads(body)  # whoever has the key wrote it
        if fields["worker"] != self._worker:
            return f"the request is for {fields['worker']}; this is {self._worker}"
        if abs(now - fields["time"]) > WINDOW_S:
            return (
                f"the request is {now - fields['time']:.0f} s old; expected at most {WINDOW_S:g} s. Compare the clocks"
            )
        if fields["time"] < self._started:
            return (
                f"the request was made {self._started - fields['time']:.0f} s before this worker started, and may "
                "have been sent to its predecessor. Send a new one, and compare the clocks"
            )
        self._seen = {nonce: time for nonce, time in self._seen.items() if abs(now - time) <= WINDOW_S}
        if fields["nonce"] in self._seen:
            return "the request was already used; send a new one"
        self._seen[fields["nonce"]] = fields["time"]
        return ""


def _proof(key: bytes, body: bytes) -> str:
    return hmac.new(key, body, hashlib.sha256).hexdigest()
