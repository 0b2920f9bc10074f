"""The launcher's port, for its ranks' supervisors and for agents: on one address alone."""

from __future__ import annotations

import ipaddress
import socket

from tfdist.errors import ConfigError
from tfdist.launch.host import host
from tfdist.launch.start.starter import Starter
from tfdist.protocol import mesh
from tfdist.system.network import endpoint, interface


def towards(starter: Starter) -> socket.socket:
    """A listening socket on the address at which the ranks reach us: loopback if all of them run on this machine."""
    interfaces = starter.interfaces
    if starter.local:
        address = "127.0.0.1"
    elif interfaces:
        address = next(at for at in map(interface.address, interfaces) if at is not None)
    else:
        address = _address_towards(next(item.name for item in starter.hosts if not host.is_local(item.name)))
    return mesh.listen(address)


def named(address: endpoint.Address, option: str) -> socket.socket:
    """A listening socket on the address that the user has chosen.

    Raises:
        ConfigError: If it is not an address of this machine, or the port is in use. The message begins with `option`.
    """
    numeric = host.address(address[0])
    if ipaddress.ip_address(numeric).is_unspecified:
        raise ConfigError(f"{option} {endpoint.text(address)}: expected one address of this machine, not all of them")
    try:
        return mesh.listen(numeric, address[1])
    except OSError as error:
        raise ConfigError(
            f"{option} {endpoint.text(address)}: cannot listen there: {error.strerror}. Choose an address of this "
            "machine and a port that is free"
        ) from None


def _address_towards(name: str) -> str:
    numeric = host.address(name)
    with socket.socket(host.family(numeric), socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((numeric, 9))  # a datagram socket: chooses a route, sends nothing
        except OSError as error:
            raise ConfigError(f"host {name!r} cannot be reached from here: {error.strerror}") from None
        return str(probe.getsockname()[0])
