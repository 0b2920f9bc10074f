"""Chooses the network that MPI uses between hosts if the user names no interfaces: one that all hosts share.

Open MPI would try every interface of a host, including the bridges of containers and virtual machines, which have the
same address on every host and lead nowhere: connections would then wait for a timeout.
"""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

# Excluded if the hosts share no network with this machine: Open MPI's own list, and bridges.
NOT_BETWEEN_HOSTS = "127.0.0.0/8,sppp,docker0,virbr0,lxcbr0,lxdbr0,podman0,cni0,cni-podman0"
_ROUTES = Path("/proc/net/route")
_UP, _GATEWAY = 0x1, 0x2
_COLUMNS = 8
# MPI's own settings for this; if both were set, it would refuse to start.
_OWN = ("btl_tcp_if_", "prte_if_")


def choose(addresses: Collection[str], words: Sequence[str], environment: Mapping[str, str], mpirun: str) -> str | None:
    """The value of `Starter.network` for these hosts.

    Args:
        addresses: The addresses of the other hosts.
        words: The user's arguments for mpirun.
        environment: The environment of the ranks.
        mpirun: The program; its installation's settings are next to its folder.
    """
    own = Path(os.path.realpath(mpirun)).parents[1] / "etc" / "openmpi-mca-params.conf"
    files = [own, Path(environment.get("HOME", "/"), ".openmpi", "mca-params.conf")]
    texts = [file.read_text(errors="replace") for file in files if os.access(file, os.R_OK)]
    if is_set([*words, *environment, *texts]):
        return None
    return shared(addresses, _ROUTES.read_text() if _ROUTES.exists() else "")


def is_set(texts: Iterable[str]) -> bool:
    """Whether arguments, variable names or a settings file choose interfaces; `#` starts a comment."""
    lines = (line.partition("#")[0] for text in texts for line in text.splitlines())
    return any(name in line for line in lines for name in _OWN)


def shared(addresses: Collection[str], routes: str) -> str:
    """The smallest network of this machine that contains all hosts, such as 10.0.0.0/24; empty if there is none.

    It is a network and not an interface, because interface names may differ between hosts.

    Args:
        addresses: As for `choose`.
        routes: The text of /proc/net/route.
    """
    if any(":" in address for address in addresses):  # of IPv6, which these routes do not have
        return ""
    hosts = [ipaddress.IPv4Address(address) for address in addresses]
    fitting = [network for network in _networks(routes) if all(host in network for host in hosts)]
    return str(max(fitting, key=lambda network: network.prefixlen)) if hosts and fitting else ""


def _networks(routes: str) -> list[ipaddress.IPv4Network]:
    """The networks this machine reaches without a gateway."""
    found = []
    for columns in (line.split() for line in routes.splitlines()[1:]):
        if len(columns) < _COLUMNS:
            continue
        destination, mask = (int.from_bytes(bytes.fromhex(columns[place]), sys.byteorder) for place in (1, 7))
        flags = int(columns[3], 16)
        if flags & _UP and not flags & _GATEWAY and 0 < mask < 0xFFFFFFFF:
            found.append(ipaddress.IPv4Network((destination, str(ipaddress.IPv4Address(mask)))))
    return found
