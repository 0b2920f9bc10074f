"""The home folder where the environment names none, as in `env -i` and services of systemd: Open MPI ends without."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping


def fill() -> None:
    """Sets HOME for this process and all that it starts, if it is missing."""
    os.environ.update(variables(os.environ))


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """What is missing in `environment`: HOME as the list of users has it, or / for a user who is not there."""
    if "HOME" in environment:
        return {}
    try:
        return {"HOME": pwd.getpwuid(os.getuid()).pw_dir or "/"}
    except KeyError:
        return {"HOME": "/"}
