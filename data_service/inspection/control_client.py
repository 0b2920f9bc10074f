"""Queries one server at its control port. Needs no gRPC, so it starts quickly."""

from __future__ import annotations

import http.client
import io
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from tfdist.data_service.inspection import status
from tfdist.data_service.inspection.address import ServiceAddress
from tfdist.data_service.inspection.status import Status

_LARGEST_ANSWER_BYTES = 1 << 20
_SHORTEST_WAIT_S = 0.01


def fetch(address: ServiceAddress, timeout_s: float) -> Status:
    """The status of a server, from its control port.

    Raises:
        OSError: If there is none; says why.
    """
    code, text = request(address, "GET", "/status", timeout_s)
    if code != http.client.OK:
        raise OSError(f"{address.control} answers GET /status with {code}")
    try:
        found = status.parse(text)
        if any(plain(word) != word for word in _words(asdict(found))):
            raise ValueError("it contains terminal control characters")
    except (ValueError, RecursionError) as error:
        raise OSError(f"{address.control} answers GET /status with an invalid status: {error}") from None
    return found


def _words(value: Any) -> Iterator[str]:
    """All strings in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from (*_words(name), *_words(item))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _words(item)


def plain(text: str) -> str:
    """Untrusted text made safe for a terminal: non-printable characters are escaped."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def request(
    address: ServiceAddress, method: str, path: str, timeout_s: float, body: bytes = b"", **headers: str
) -> tuple[int, bytes]:
    """Status code and text of a request to a control port, which closes the connection after its answer.

    Args:
        address: The server whose control port is used.
        method: Such as "GET".
        path: Such as "/status".
        timeout_s: Seconds for the whole exchange, however slowly the other side sends.
        body: The body to send.
        headers: Headers by name, with `_` for `-`.

    Raises:
        OSError: If there is no answer.
    """
    named = {"Host": address.control, **{name.replace("_", "-"): value for name, value in headers.items()}}
    if body:
        named["Content-Length"] = str(len(body))
    head = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    try:
        data = _exchange(address, f"{method} {path} HTTP/1.0\r\n{head}\r\n".encode() + body, timeout_s)
        answer = http.client.HTTPResponse(_Received(data), method=method)  # type: ignore[arg-type]
        answer.begin()
        return answer.status, answer.read()
    except (ValueError, OSError, http.client.HTTPException) as error:  # ValueError: no name that can be looked up
        raise OSError(f"{address.control} does not answer: {error}") from None


class _Received:
    """A stand-in for the socket that `http.client` expects, holding a complete answer."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self._data)


def _exchange(address: ServiceAddress, sent: bytes, timeout_s: float) -> bytes:
    """Returns what the other side sends until it closes, up to `_LARGEST_ANSWER_BYTES`."""
    end = time.monotonic() + timeout_s
    with _connect(address.host, address.control_port, timeout_s) as connection:
        connection.sendall(sent)
        data = b""
        while len(data) < _LARGEST_ANSWER_BYTES:
            left_s = end - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"timed out after {timeout_s:.3g} s")
            connection.settimeout(left_s)
            piece = connection.recv(_LARGEST_ANSWER_BYTES - len(data))
            if not piece:
                break
            data += piece
    return data


def _connect(host: str, port: int, timeout_s: float) -> socket.socket:
    """Opens a connection; the timeout is divided among the addresses of the host."""
    end = time.monotonic() + timeout_s
    found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    reason: OSError = OSError(f"{host} has no address")
    for number, (family, kind, protocol, _, place) in enumerate(found):
        made = socket.socket(family, kind, protocol)
        try:
            made.settimeout(max(_SHORTEST_WAIT_S, (end - time.monotonic()) / (len(found) - number)))
            made.connect(place)
            return made
        except OSError as error:
            made.close()
            reason = error
    raise reason


def accepts(host: str, port: int, timeout_s: float) -> bool:
    """Whether anything listens there."""
    try:
        _connect(host, port, timeout_s).close()
    except (OSError, ValueError):
        return False
    return True
