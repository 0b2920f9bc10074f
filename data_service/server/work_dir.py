"""Verifies that dispatcher and worker see the same work_dir, by a random token in it. Equal paths prove nothing."""

from __future__ import annotations

import secrets
import stat
from pathlib import Path

from tfdist.errors import ConfigError
from tfdist.system.atomic_file import write_atomically

TOKEN_FILE = "tfdist-token"


def provide_token(folder: str) -> str:
    """The token of a dispatcher's work_dir, which is created if missing; kept when the dispatcher restarts.

    Raises:
        ConfigError: If the folder cannot be written, or every user can write to it.
    """
    path = Path(folder) / TOKEN_FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _check_private(path.parent)
        if not path.exists():  # whole or not at all: a full disk must leave no empty token
            token = secrets.token_hex(16)
            write_atomically(path, lambda temporary: temporary.write_text(token, encoding="utf-8"))
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"work_dir {folder} cannot be used: {error.strerror}. Choose a writable folder on a disk that is not full."
        ) from None


def _check_private(folder: Path) -> None:
    """Raises if any user of this machine could put a dataset, which is a program, into the folder."""
    mode = folder.stat().st_mode
    if mode & stat.S_IWOTH:
        raise ConfigError(
            f"work_dir {folder} has mode {stat.S_IMODE(mode):04o}: every user can write to it and could make the "
            f"workers run code as this user. Use a folder of its own, or run: chmod o-w {folder}"
        )


def check_token(folder: str, expected: str | None) -> None:
    """Compares a worker's work_dir with the dispatcher's.

    Args:
        folder: The worker's work_dir.
        expected: The dispatcher's token; None if it has no work_dir.

    Raises:
        ConfigError: If they are not the same folder, or every user can write to it.
    """
    if expected is None:
        raise ConfigError(f"the worker has work_dir {folder}, but its dispatcher has none. Give both the same folder.")
    path = Path(folder) / TOKEN_FILE
    try:
        found = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"work_dir {folder} is not the dispatcher's: {TOKEN_FILE} in it cannot be read ({error.strerror}). "
            "Mount the dispatcher's work_dir at the same path here."
        ) from None
    if found != expected:
        raise ConfigError(
            f"work_dir {folder} is not the dispatcher's: the token in it is {found[:8]}..., the dispatcher's is "
            f"{expected[:8]}.... These are two folders with the same path. Mount the dispatcher's here."
        )
    _check_private(path.parent)
