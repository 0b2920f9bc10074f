"""Asks one server at its control port. It needs no gRPC, so that it starts in a moment."""

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
    """The status of a server, by its control port.

    Raises:
        OSError: If there is none; tells why.
    """
    code, text = request(address, "GET", "/status", timeout_s)
    if code != http.client.OK:
        raise OSError(f"{address.control} answers GET /status with {code}")
    try:
        found = status.parse(text)
        if any(plain(word) != word for word in _words(asdict(found))):
            raise ValueError("it holds characters that control a terminal")
    except (ValueError, RecursionError) as error:
        raise OSError(f"{address.control} answers GET /status with something else: {error}") from None
    return found


def _words(value: Any) -> Iterator[str]:
    """All text in what JSON can hold."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from (*_words(name), *_words(item))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _words(item)


def plain(text: str) -> str:
    """Text of others as a terminal may show it: what is no printable character is written as its escape."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def request(
    address: ServiceAddress, method: str, path: str, timeout_s: float, body: bytes = b"", **headers: str
) -> tuple[int, bytes]:
    """Status code and text of a request to a control port, which closes the connection behind its answer.

    Args:
        address: Whose control port.
        method: Such as "GET".
        path: Such as "/status".
        timeout_s: Seconds for all of it, however slowly the other side sends.
        body: What is sent.
        headers: A name's `_` stands for `-`.

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
    """What `http.client` takes for a socket: an answer that is there already."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self._data)


def _exchange(address: ServiceAddress, sent: bytes, timeout_s: float) -> bytes:
    """What comes back until the other side closes, up to `_LARGEST_ANSWER_BYTES`."""
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
    """A connection; a host of several addresses gets the time of one, divided among them."""
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
    """Whether something listens there."""
    try:
        _connect(host, port, timeout_s).close()
    except (OSError, ValueError):
        return False
    return True
