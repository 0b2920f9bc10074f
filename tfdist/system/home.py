"""Provides HOME if it is not set, as under `env -i` and systemd, because Open MPI exits without it."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping


def fill() -> None:
    """Sets HOME for this process and its children, if it is missing."""
    os.environ.update(variables(os.environ))


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """What is missing in `environment`: HOME from the user database, or / for an unknown user."""
    if "HOME" in environment:
        return {}
    try:
        return {"HOME": pwd.getpwuid(os.getuid()).pw_dir or "/"}
    except KeyError:
        return {"HOME": "/"}
