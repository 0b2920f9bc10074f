"""The key that the launcher and its agents share: read from a file that only its owner can read."""

from __future__ import annotations

import os
import stat

from tfdist.errors import ConfigError

LEAST_BYTES = 32
_MOST_BYTES = 1 << 16
_REMEDY = '(umask 077; python -c "import secrets; print(secrets.token_hex(32))" > {})'


def read(path: str) -> bytes:
    """The content of a key file, without spaces and line ends around it.

    Raises:
        ConfigError: If there is no such file, others may read or write it, or it is too short. The message never shows
            the content.
    """
    where = f"--key-file {path}"
    try:
        with open(path, "rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise ConfigError(f"{where}: not a file")
            if reason := _why_not_private(about, path):
                raise ConfigError(f"{where}: {reason}")
            key = file.read(_MOST_BYTES).strip()
    except FileNotFoundError:
        made = _REMEDY.format(path)
        raise ConfigError(
            f"{where}: no such file. Make one with {made}, and copy it to every host, mode 0600"
        ) from None
    except OSError as error:
        raise ConfigError(f"{where} cannot be read: {error.strerror}") from None
    if len(key) < LEAST_BYTES:
        made = _REMEDY.format(path)
        raise ConfigError(f"{where}: it has {len(key)} bytes; expected {LEAST_BYTES} or more. Make one with {made}")
    return key


def _why_not_private(about: os.stat_result, path: str) -> str:
    """Why others might know or change the key; empty if they cannot.

    A Secret of Kubernetes with an `fsGroup` belongs to root and is readable by that group, the container's own, and
    chmod cannot change that. So a group may read, but not write, what belongs to root or this user.
    """
    mode = stat.S_IMODE(about.st_mode)
    group, others = mode & stat.S_IRWXG, mode & stat.S_IRWXO
    ours = about.st_uid in (0, os.geteuid())
    if others or group & ~stat.S_IRGRP or (group and not ours):
        return f"others may have access to it (mode {mode:04o}): chmod 600 {path}"
    return ""
