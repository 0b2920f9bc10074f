"""Finds `tfdist.yaml` in the working folder: options that need not be given, if nobody else can have written them."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from tfdist.errors import ConfigError

NAME = "tfdist.yaml"
_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def find(say: Callable[[str], None]) -> tuple[str, str] | None:
    """Its path and text; None if there is none, or it is ignored. Says which of these, and why.

    Raises:
        ConfigError: If it cannot be read.
    """
    path = Path.cwd() / NAME
    try:
        linked = os.lstat(path)
    except FileNotFoundError:
        return None
    try:
        # A pipe must not be waited for. What is checked is what is read.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), encoding="utf-8") as file:
            if reason := _distrust(os.fstat(file.fileno()), linked.st_uid):
                say(f"{path} is ignored: {reason}; or give it with --config-file")
                return None
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}. Remove it, or give --no-config") from None
    say(f"options from {path}; --no-config leaves it out")
    return str(path), text


def _distrust(found: os.stat_result, linker: int) -> str:
    """Why a file is not used, and what to do about it; empty if only this user and root can have written it."""
    if not stat.S_ISREG(found.st_mode):
        return "it is not a file; remove it"
    owner = next((each for each in (found.st_uid, linker) if each not in (0, os.geteuid())), None)
    if owner is not None:
        return f"it belongs to user {owner}, and options can run commands; copy it to have one of your own"
    if found.st_mode & _OTHERS:
        return f"other users can write it, and options can run commands; run chmod go-w {NAME}"
    return ""
