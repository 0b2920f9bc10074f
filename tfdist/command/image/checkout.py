"""The sources that an image is built from: a checkout of tfdist, its version and its revision. It changes nothing."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tfdist.errors import ConfigError

_GIT_S = 60.0


@dataclass(frozen=True)
class Checkout:
    """A folder with docker/Dockerfile.

    Attributes:
        version: Of tfdist.
        revision: The commit, with "-dirty" where a tracked file is not as committed; empty where git knows none.
        pinned: The values of docker/versions.env, which the Dockerfile takes where none is given.
    """

    folder: Path
    version: str
    revision: str
    pinned: dict[str, str]

    @property
    def dockerfile(self) -> Path:
        return self.folder / "docker" / "Dockerfile"


def read(folder: Path) -> Checkout:
    """The checkout in a folder.

    Raises:
        ConfigError: If it is none.
    """
    for name in ("docker/Dockerfile", "docker/versions.env", "pyproject.toml", "tfdist/csrc"):
        if not (folder / name).exists():
            raise ConfigError(
                f"--source is {str(folder)!r}, which is no checkout of tfdist: it has no {name}. An image compiles "
                "tfdist's C++, which no wheel has. Get the sources (git clone), and type the command in their folder, "
                "or give that: --source FOLDER."
            )
    found = re.search(r'^version = "(.+)"$', (folder / "pyproject.toml").read_text(), re.MULTILINE)
    if found is None:
        raise ConfigError(f"{folder / 'pyproject.toml'} has no line 'version = \"...\"'; it is not the one of tfdist.")
    lines = (folder / "docker" / "versions.env").read_text().splitlines()
    pinned = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    return Checkout(folder, found[1], _revision(folder), pinned)


def _revision(folder: Path) -> str:
    if shutil.which("git") is None:
        return ""
    commit = _git(folder, "rev-parse", "HEAD")
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return f"{commit}-dirty" if commit and changed else commit


def _git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_S, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""
