"""Reads the file with the key that all processes of a job share, and makes one for the processes of this machine."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import tempfile
from pathlib import Path

from tfdist.errors import ConfigError

MAKE = '(umask 077; python -c "import secrets; print(secrets.token_hex(32))" > {})'
LEAST_BYTES = 32
_MOST_BYTES = 1 << 12


def read(path: str, name: str) -> bytes:
    """The content of a key file, without spaces and line ends around it.

    Args:
        path: The file.
        name: The option or variable that names it.

    Raises:
        ConfigError: If there is no such file, others may read or write it, or it is too short. The message never shows
            the content.
    """
    where = f"{name} {path}"
    make = f"Make one, and copy it to every host, mode 0600: {MAKE.format(path)}"
    try:
        with open(path, "rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise ConfigError(f"{where}: not a file")
            if reason := _why_not_private(about, path):
                raise ConfigError(f"{where}: {reason}")
            key = file.read(_MOST_BYTES + 1).strip()
    except FileNotFoundError:
        raise ConfigError(f"{where}: no such file. {make}") from None
    except OSError as error:
        raise ConfigError(f"{where} cannot be read: {error.strerror}") from None
    if not LEAST_BYTES <= len(key) <= _MOST_BYTES:
        raise ConfigError(f"{where} has {len(key)} bytes; expected {LEAST_BYTES} to {_MOST_BYTES}. {make}")
    return key


def _why_not_private(about: os.stat_result, path: str) -> str:
    """Why others might know or change the key; empty if they cannot.

    A Secret of Kubernetes with an `fsGroup` belongs to root and is readable by that group, the container's own, and
    chmod cannot change that. So a group may read, but not write. Whoever owns the file knows the key.
    """
    mode = stat.S_IMODE(about.st_mode)
    group, others = mode & stat.S_IRWXG, mode & stat.S_IRWXO
    ours = about.st_uid in (0, os.geteuid())
    if not ours:
        return f"another user owns it (uid {about.st_uid}): chown it, and chmod 600 {path}"
    if others or group & ~stat.S_IRGRP:
        return f"others may have access to it (mode {mode:04o}): chmod 600 {path}"
    return ""


def of_this_machine(folder: Path) -> bytes:
    """A key that only processes of this user have; made once, in this folder.

    Raises:
        ConfigError: If it cannot be kept.
    """
    path = folder / "loopback.key"
    try:
        if not folder.is_absolute():
            raise FileNotFoundError(errno.ENOENT, "there is no home folder")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            _make(path)
    except OSError as error:
        raise ConfigError(
            f"the key for the ranks of this machine cannot be kept in {path}: {error.strerror}. Set TFDIST_KEY_FILE to "
            f"a file of your own: {MAKE.format('FILE')}"
        ) from None
    return read(str(path), "the key of this machine")


def _make(path: Path) -> None:
    """Complete or not there: several processes may do this at once, and all read the one that was first."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent) as file:  # nobody else may read it
        file.write(secrets.token_hex(LEAST_BYTES))
        file.flush()
        with contextlib.suppress(FileExistsError):
            os.link(file.name, path)
