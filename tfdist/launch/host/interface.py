"""The network interfaces that the user names: whether they are there."""

from __future__ import annotations

from collections.abc import Sequence

from tfdist.errors import ConfigError
from tfdist.system.network.interface import address, addresses


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


def _present() -> str:
    """Those with an address, as in "eth0 (10.0.0.4), lo (127.0.0.1)"."""
    return ", ".join(f"{name} ({at})" for name, at in addresses().items())
