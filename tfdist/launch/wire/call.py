"""Transfers the bytes of `tfdist.run`: the function to the ranks, their results back.

On the launcher's own machine they pass through unnamed files, opened through /proc: no socket is needed, and nothing is
left behind. To other machines they are sent in parts, in the authenticated frames of `record`.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import os
import resource
import tempfile
from collections.abc import Callable
from typing import Any

from tfdist.errors import ConfigError
from tfdist.launch.wire.record import RefusedFrameError
from tfdist.system import process

# Limit for the function with its arguments, and for each rank's result.
LIMIT_BYTES = 1 << 30
# Limit for one message; in base64 it stays below the limit of a frame.
PART_BYTES = 1 << 19
# The first byte a rank writes to its result pipe.
RETURNED, FAILED = b"r", b"f"
# What the launcher opens besides the connection and the result of each rank.
_OTHER_FILES = 64


def anonymous_file() -> int:
    """A descriptor of an empty unnamed file, which disappears when it is closed everywhere."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("tfdist-run")
    with tempfile.TemporaryFile() as file:  # if Python was built for an old C library
        return os.dup(file.fileno())


def write_all(descriptor: int, data: bytes) -> None:
    """Writes all of `data` to a file or blocking pipe."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _digest(descriptor: int) -> str:
    digest, offset = hashlib.sha256(), 0
    while data := os.pread(descriptor, PART_BYTES, offset):
        digest.update(data)
        offset += len(data)
    return digest.hexdigest()


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _decode(text: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise RefusedFrameError("a part that is not base64") from None
    if not 0 < len(data) <= PART_BYTES:
        raise RefusedFrameError(f"a part of {len(data)} bytes; expected 1 to {PART_BYTES}")
    return data


class Call:
    """The launcher's end.

    Args:
        function: Descriptor of the file with the pickled function.
    """

    def __init__(self, function: int) -> None:
        self._function = function
        self._size, self._digest = os.fstat(function).st_size, _digest(function)
        # The files of the results by rank, and how much of them came in parts.
        self._results: dict[int, int] = {}
        self._kept: dict[int, int] = {}

    def offer(self, rank: int) -> dict[str, Any]:
        """The fields of the message `call` to a rank, for whose result there is an empty file then."""
        if rank in self._results:
            os.close(self._results[rank])
        self._results[rank], self._kept[rank] = anonymous_file(), 0
        here = f"/proc/{os.getpid()}/fd"
        return {
            "size": self._size,
            "digest": self._digest,
            "machine": process.machine(),
            "source": f"{here}/{self._function}",
            "sink": f"{here}/{self._results[rank]}",
        }

    def part(self, offset: int) -> str:
        """The field of the message `part` that answers `fetch`; empty if there is no such part."""
        return _encode(os.pread(self._function, PART_BYTES, offset)) if 0 <= offset < self._size else ""

    def keep(self, rank: int, text: str) -> None:
        """Adds the next part of a rank's result. Raises RefusedFrameError."""
        data = _decode(text)
        self._kept[rank] += len(data)
        if self._kept[rank] > LIMIT_BYTES:
            raise RefusedFrameError(f"a result of more than {LIMIT_BYTES} bytes")
        write_all(self._results[rank], data)

    def hand_over(self, descriptor: int) -> list[tuple[int, int]]:
        """Appends all results to a file, and closes their own; returns each rank with the size of its result."""
        found = []
        for rank, result in sorted(self._results.items()):
            size = os.fstat(result).st_size
            offset = 0
            while offset < size:
                offset += os.sendfile(descriptor, result, offset, size - offset)
            os.close(result)
            found.append((rank, size))
        self._results.clear()
        return found


def check_files(ranks: int) -> None:
    """Raises ConfigError if this process may not open as many files as the results of so many ranks need."""
    needed, allowed = 2 * ranks + _OTHER_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if allowed != resource.RLIM_INFINITY and needed > allowed:
        raise ConfigError(
            f"this many ranks need {needed} open files, but this process may have only {allowed}; raise the limit "
            "(ulimit -n), or start the job with tfdistrun."
        )


class Errand:
    """The supervisor's end: passes the function to its rank and the result back.

    Args:
        offer: The fields of the message `call`.
        send: Sends a message to the launcher.

    Raises:
        RefusedFrameError: If the offer is invalid.
    """

    def __init__(self, offer: dict[str, Any], send: Callable[..., None]) -> None:
        self._size, self._digest, self._send = offer["size"], offer["digest"], send
        if not 0 < self._size <= LIMIT_BYTES:
            raise RefusedFrameError(f"announces a function of {self._size} bytes; expected 1 to {LIMIT_BYTES}")
        near = bool(offer["machine"]) and offer["machine"] == process.machine()
        found = _open(offer["source"], os.O_RDONLY) if near else None
        self._sink = _open(offer["sink"], os.O_WRONLY) if near else None
        self._received = 0 if found is None else self._size
        self.function = anonymous_file() if found is None else found
        self._taken = 0
        self._failing = False
        self._proceed()

    @property
    def ready(self) -> bool:
        """Whether the function has arrived completely, as announced."""
        return self._received == self._size

    @property
    def answered(self) -> bool:
        """Whether the rank has started to write a result or a failure."""
        return self._taken > 0

    def add(self, text: str) -> None:
        """Adds the next part of the function. Raises RefusedFrameError."""
        data = _decode(text)
        if self._received + len(data) > self._size:
            raise RefusedFrameError("more of the function than was announced")
        write_all(self.function, data)
        self._received += len(data)
        self._proceed()

    def take(self, data: bytes) -> None:
        """Passes on what the rank wrote to its result pipe."""
        if not self.answered and data.startswith(FAILED):
            self.fail()
        self._taken += len(data)
        if self._taken > LIMIT_BYTES:
            return  # truncated, it does not count as a result; a rank checks the size before it writes
        if self._sink is not None:
            write_all(self._sink, data)
        else:
            self._send("result", data=_encode(data))

    def fail(self) -> None:
        """Reports at once to the launcher that this rank has failed: the process may take time to exit."""
        if not self._failing:
            self._failing = True
            self._send("failing")

    def _proceed(self) -> None:
        if not self.ready:
            self._send("fetch", offset=self._received)
        elif os.fstat(self.function).st_size != self._size or _digest(self.function) != self._digest:
            raise RefusedFrameError("the function's bytes are not those that were announced")


def _open(path: str, flags: int) -> int | None:
    """The descriptor; None if /proc does not allow it, and then the bytes are sent in frames."""
    with contextlib.suppress(OSError):
        return os.open(path, flags | os.O_CLOEXEC)
    return None
