"""The IPv4 addresses of this machine, by network interface. Linux only, like all of tfdist."""

from __future__ import annotations

import fcntl
import socket
import struct

_SIOCGIFADDR = 0x8915
_REQUEST = struct.Struct("15s17x8x")  # struct ifreq: a name that ends with 0, space for the result
_ADDRESS = slice(20, 24)


def address(name: str) -> str | None:
    """The address of a network interface; None if it does not exist or has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, _SIOCGIFADDR, _REQUEST.pack(name.encode()))
        except OSError:
            return None
    return socket.inet_ntoa(answer[_ADDRESS])


def addresses() -> dict[str, str]:
    """The address of each interface that has one, including loopback."""
    found = {name: address(name) for _, name in socket.if_nameindex()}
    return {name: at for name, at in sorted(found.items()) if at is not None}
