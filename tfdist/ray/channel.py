"""What an actor and the rank below it say to each other: frames over a socket that only this user's processes join."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
from collections.abc import Iterator

# What a frame is: the number of a rank that is there, a call, its answer, or values for the driver's callbacks.
RANK, CALL, ANSWER, LOG = b"r", b"c", b"a", b"l"
_HEAD = struct.Struct("=cQ")
_CREDENTIALS = struct.Struct("=3i")  # process, user, group


def listen() -> socket.socket:
    """A socket without a file: nothing is left behind, whoever is killed."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0tfdist-{secrets.token_hex(16)}")
    listener.listen()
    return listener


def name_of(listener: socket.socket) -> str:
    """What `join` takes."""
    return bytes(listener.getsockname())[1:].decode()


def join(name: str) -> socket.socket:
    """A connection to the actor. Raises OSError; PermissionError if another user listens there."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(f"\0{name}")
        if not is_own(connection):
            raise PermissionError("the process at the other end belongs to another user")
    except BaseException:
        connection.close()
        raise
    return connection


def is_own(connection: socket.socket) -> bool:
    """Whether the process at the other end is this user's."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(data)[1] == os.geteuid())


def send(connection: socket.socket, kind: bytes, data: bytes) -> None:
    """Sends a frame. Raises OSError."""
    connection.sendall(_HEAD.pack(kind, len(data)))
    if data:  # after the end of an empty frame the other end may be gone
        connection.sendall(data)


def frames(connection: socket.socket) -> Iterator[tuple[bytes, bytes]]:
    """Yields the kind and the content of each frame, until the other end has gone."""
    while (head := _read(connection, _HEAD.size)) is not None:
        kind, size = _HEAD.unpack(head)
        data = _read(connection, size)
        if data is None:
            return
        yield kind, data


def _read(connection: socket.socket, size: int) -> bytes | None:
    data = bytearray(size)
    view = memoryview(data)
    with contextlib.suppress(ConnectionError):
        while view:
            count = connection.recv_into(view)
            if not count:
                return None
            view = view[count:]
        return bytes(data)
    return None
