"""The network interfaces of this machine: whether those are there that the user names, and their addresses."""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Sequence

from tfdist.errors import ConfigError

_SIOCGIFADDR = 0x8915


def check(names: Sequence[str], *, local: bool) -> list[str]:
    """Whether MPI and the launcher can use these interfaces on this machine.

    Args:
        names: As the user gives them; none is right.
        local: Whether all ranks run here. Hosts may name theirs differently, so over hosts one of them is enough.

    Returns:
        Lines about those that are not here.

    Raises:
        ConfigError: If one is missing that is needed.
    """
    missing = [name for name in names if address(name) is None]
    if missing and (local or len(missing) == len(names)):
        raise ConfigError(
            f"--network-interfaces: {', '.join(missing)} {'has' if len(missing) == 1 else 'have'} no IPv4 address on "
            f"this machine; there are: {_present()}"
        )
    return [
        f"note: --network-interfaces: {name} has no IPv4 address on this machine, and is used on other hosts alone; "
        f"here there are: {_present()}"
        for name in missing
    ]


def address(name: str) -> str | None:
    """The IPv4 address of a network interface of this machine; None if it is not there, or has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def _present() -> str:
    """Those with an address, as in "eth0 (10.0.0.4), lo (127.0.0.1)"."""
    addresses = {name: address(name) for _, name in socket.if_nameindex()}
    return ", ".join(f"{name} ({at})" for name, at in sorted(addresses.items()) if at is not None)
