"""Closes a listening port of this process to everything that does not arrive through the loopback device.

tf.data's gRPC server listens on every interface, and no setting changes that. The kernel lets the owner of a socket
attach a filter without privileges: packets from other devices are dropped, and connections inherit the filter. It does
not keep out other users of this machine.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
from pathlib import Path
from typing import Any

from tfdist.errors import ConfigError

_SO_ATTACH_FILTER, _SO_LOCK_FILTER = 26, 44
_LOAD_WORD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_DEVICE_INDEX = 0xFFFFF000 + 8  # SKF_AD_OFF + SKF_AD_IFINDEX
_ACCEPT, _DROP = 0xFFFFFFFF, 0


def program(device: int) -> bytes:
    """The filter, as four instructions of classic BPF: accept what arrives through the device with this index."""
    instructions = (
        (_LOAD_WORD, 0, 0, _DEVICE_INDEX),
        (_JUMP_IF_EQUAL, 0, 1, device),
        (_RETURN, 0, 0, _ACCEPT),
        (_RETURN, 0, 0, _DROP),
    )
    return b"".join(struct.pack("HBBI", *instruction) for instruction in instructions)


def close_off(port: int) -> None:
    """Attaches the filter permanently to every socket of this process that listens on the port.

    A connection that another machine made before that is cut.

    Raises:
        ConfigError: If no socket of this process listens there, or the kernel refuses.
    """
    code = program(socket.if_nametoindex("lo"))
    buffer = ctypes.create_string_buffer(code, len(code))
    argument = struct.pack("HL", len(code) // 8, ctypes.addressof(buffer))
    filtered = 0
    for own in _sockets(port):
        with own:
            if own.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                try:
                    if not own.getsockopt(socket.SOL_SOCKET, _SO_LOCK_FILTER):  # else a second descriptor of one socket
                        own.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, argument)
                        own.setsockopt(socket.SOL_SOCKET, _SO_LOCK_FILTER, 1)
                except OSError as error:
                    raise ConfigError(
                        f"port {port} cannot be closed to other machines: the kernel refuses a socket filter "
                        f"({error.strerror}). On a private network, leave it open with insecure=True or --insecure."
                    ) from None
                filtered += 1
    if not filtered:
        raise ConfigError(f"port {port} cannot be closed to other machines: no socket of this process listens on it.")
    for own in _sockets(port):
        with own, contextlib.suppress(OSError):
            if not _is_local(own.getpeername()[0]):
                own.shutdown(socket.SHUT_RDWR)


def _sockets(port: int) -> list[socket.socket]:
    """Duplicates of this process's TCP sockets bound to this port."""
    found = []
    for entry in list(Path("/proc/self/fd").iterdir()):
        try:
            if not os.readlink(entry).startswith("socket:"):
                continue
            own = socket.socket(fileno=os.dup(int(entry.name)))
        except OSError:
            continue  # closed since it was listed
        name: tuple[Any, ...] = own.getsockname() if own.family in (socket.AF_INET, socket.AF_INET6) else ()
        if own.type == socket.SOCK_STREAM and len(name) > 1 and name[1] == port:
            found.append(own)
        else:
            own.close()
    return found


def _is_local(address: str) -> bool:
    return address == "::1" or address.removeprefix("::ffff:").startswith("127.")
