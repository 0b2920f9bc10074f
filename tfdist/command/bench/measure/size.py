"""Parses and formats sizes in bytes, such as 4KB and 100MB.

As in nccl-tests, K, M and G are powers of 1,024, so that 1MB is 1,048,576 bytes.
"""

from __future__ import annotations

import re

from tfdist.errors import ConfigError

_UNITS = {"": 0, "K": 10, "M": 20, "G": 30}
_FORM = re.compile(r"(\d+)\s*([KMG]?)(?:I?B)?", re.IGNORECASE | re.ASCII)


def parse(text: str) -> int:
    """The bytes in "4096", "4KB", "4K", "4KiB" or "4 kb". Raises ConfigError."""
    match = _FORM.fullmatch(text.strip())
    size = int(match[1]) << _UNITS[match[2].upper()] if match else 0
    if size == 0:
        raise ConfigError(f"{text!r} is not a size; expected 1 byte or more, such as 4096, 4KB, 1MB or 2GB")
    return size


def show(size_bytes: int) -> str:
    """The shortest form that `parse` turns back into `size_bytes`."""
    for unit in "GMK":
        if size_bytes and size_bytes % (1 << _UNITS[unit]) == 0:
            return f"{size_bytes >> _UNITS[unit]}{unit}B"
    return f"{size_bytes}B"
