"""The sources of an image: a checkout of tfdist, with its version and revision."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tfdist.errors import ConfigError

# Relative to the root of the checkout.
BAKE_FILE = "docker/docker-bake.hcl"
_GIT_S = 60.0


@dataclass(frozen=True)
class Checkout:
    """A folder with docker/docker-bake.hcl.

    Attributes:
        version: The version of tfdist.
        revision: The commit, with "-dirty" if a tracked file has changes; empty if git knows none.
        pinned: The values of docker/versions.env, which are the Dockerfile's defaults.
    """

    folder: Path
    version: str
    revision: str
    pinned: dict[str, str]


def read(folder: Path) -> Checkout:
    """The checkout in a folder.

    Raises:
        ConfigError: If it is not a checkout.
    """
    for name in (BAKE_FILE, "docker/versions.env", "pyproject.toml", "tfdist/csrc"):
        if not (folder / name).exists():
            raise ConfigError(
                f"--source is {str(folder)!r}, which is not a checkout of tfdist: it has no {name}. An image compiles "
                "tfdist's C++ code, which is not part of the wheel. Get the sources (git clone) and run the command in "
                "their folder, or pass it: --source FOLDER."
            )
    (version,) = re.findall(r'^version = "(.+)"$', (folder / "pyproject.toml").read_text(), re.MULTILINE)
    lines = (folder / "docker" / "versions.env").read_text().splitlines()
    pinned = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    return Checkout(folder, version, _revision(folder), pinned)


def _revision(folder: Path) -> str:
    command = ["git", "-C", str(folder), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_S, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
