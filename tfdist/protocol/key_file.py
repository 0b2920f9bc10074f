"""Reads the file with the key that all processes of a job share, and makes one for the processes of this machine."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import tempfile
from pathlib import Path

from tfdist.errors import ConfigError

MAKE = '(umask 077; python -c "import secrets; print(secrets.token_hex(32))" > {})'
_LEAST_BYTES = 32
_MOST_BYTES = 1 << 12


def read(path: str) -> bytes:
    """The key in a file: at least 32 bytes, such as 64 hexadecimal digits.

    Its group may read it if root owns it, since that is how Kubernetes mounts a Secret for a container without root.

    Raises:
        ConfigError: If it cannot be read, others may read or write it, or the key is short.
    """
    named = f"the key file {path}"
    make = f"Make one, and copy it to all hosts: {MAKE.format(path)}"
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            key = file.read(_MOST_BYTES + 1).strip()
    except OSError as error:
        raise ConfigError(f"{named} cannot be read: {error.strerror}. {make}") from None
    allowed = stat.S_IRWXU | (stat.S_IRGRP if found.st_uid == 0 else 0)
    if stat.S_IMODE(found.st_mode) & ~allowed:
        raise ConfigError(f"{named} is open to other users; whoever has it can run code here: chmod 600 {path}")
    if not _LEAST_BYTES <= len(key) <= _MOST_BYTES:
        raise ConfigError(f"{named} has a key of {len(key)} bytes; expected {_LEAST_BYTES} to {_MOST_BYTES}. {make}")
    return key


def of_this_machine(folder: Path) -> bytes:
    """A key that only processes of this user have; made once, in this folder.

    Raises:
        ConfigError: If it cannot be kept.
    """
    path = folder / "loopback.key"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            _make(path)
    except OSError as error:
        raise ConfigError(
            f"the key for the ranks of this machine cannot be kept in {path}: {error.strerror}. Set TFDIST_KEY_FILE to "
            f"a file of your own: {MAKE.format('FILE')}"
        ) from None
    return read(str(path))


def _make(path: Path) -> None:
    """Complete or not there: several processes may do this at once, and all read the one that was first."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent) as file:  # nobody else may read it
        file.write(secrets.token_hex(_LEAST_BYTES))
        file.flush()
        with contextlib.suppress(FileExistsError):
            os.link(file.name, path)
