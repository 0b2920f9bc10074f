"""Addresses with a port as text: HOST:PORT, where an IPv6 address stands in brackets."""

from __future__ import annotations

import re

Address = tuple[str, int]
_TEXT = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:\[\]]+)):([0-9]{1,5})", re.ASCII)
_LARGEST_PORT = 65535


def text(address: Address) -> str:
    """As in "10.0.0.1:5000" or "[fd00::1]:5000"."""
    return f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"


def parse(written: str) -> Address:
    """The address from a text as `text` makes it. Raises ValueError."""
    found = _TEXT.fullmatch(written)
    if found is None or not 0 < int(found[3]) <= _LARGEST_PORT:
        raise ValueError(f"{written!r} is not HOST:PORT, such as node1:4000 or [fd00::1]:4000")
    return found[1] or found[2], int(found[3])
