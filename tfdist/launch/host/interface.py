"""Checks the network interfaces that the user names."""

from __future__ import annotations

from collections.abc import Sequence

from tfdist.errors import ConfigError
from tfdist.system.network.interface import address, addresses


def check(names: Sequence[str], *, local: bool) -> list[str]:
    """Checks that MPI and the launcher can use these interfaces on this machine.

    Args:
        names: As the user gives them; may be empty.
        local: Whether all ranks run here. Interface names may differ between hosts, so otherwise one match is enough.

    Returns:
        Notes about interfaces that are missing here.

    Raises:
        ConfigError: If a required interface is missing.
    """
    missing = [name for name in names if address(name) is None]
    if missing and (local or len(missing) == len(names)):
        raise ConfigError(
            f"--network-interfaces: {', '.join(missing)} {'has' if len(missing) == 1 else 'have'} no IPv4 address on "
            f"this machine; available: {_present()}"
        )
    return [
        f"note: --network-interfaces: {name} has no IPv4 address on this machine, so only other hosts use it; "
        f"available here: {_present()}"
        for name in missing
    ]


def _present() -> str:
    """The interfaces with an address, as in "eth0 (10.0.0.4), lo (127.0.0.1)"."""
    return ", ".join(f"{name} ({at})" for name, at in addresses().items())
