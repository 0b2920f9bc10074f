"""Runs the docker command; its output goes to standard error as it arrives."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tfdist.command.image import option
from tfdist.command.image.checkout import BAKE_FILE, Checkout
from tfdist.command.image.combination import Combination
from tfdist.errors import TfdistError
from tfdist.system.process import descendants, end_descendants, send

_ANSWER_S = 60.0
# For one whole build, save or push, on a slow machine.
_LIMIT_S = 4 * 3600.0
_END_S = 20.0


class ImageError(TfdistError, RuntimeError):
    """An image could not be built, saved or pushed; the message says why and what to do."""


def find() -> str:
    """The docker command. Raises ImageError if it is missing or has no buildx."""
    command = shutil.which("docker")
    if command is None:
        raise ImageError(
            "no docker command on PATH; it is needed to build the image. Install Docker Engine 20.10 or newer with "
            "buildx; on Debian 13: apt-get install docker.io docker-cli docker-buildx"
        )
    asked = subprocess.run([command, "buildx", "version"], capture_output=True, timeout=_ANSWER_S, check=False)
    if asked.returncode:
        raise ImageError(
            f"{command} has no buildx, which is needed to build the image. Install it: the package is "
            "docker-buildx-plugin from Docker, docker-buildx on Debian 13 and Ubuntu. Debian 12 has none: "
            "docs/containers.md says what to do there."
        )
    return command


def bake(docker: str, source: Checkout, chosen: Combination, names: Sequence[str], options: argparse.Namespace) -> None:
    """Builds the image and loads it into the Docker engine under its names. Raises ImageError if that fails."""
    # Variables of docker/docker-bake.hcl. Values that equal docker/versions.env are left empty, which selects those.
    more = " ".join(options.extra_packages.split())  # a second line would be ignored
    given = chosen.arguments() | {"EXTRA_PACKAGES": more, "REVISION": source.revision}
    variables = {name: "" if source.pinned.get(name) == value else value for name, value in given.items()}
    # Newer buildx releases ask for permission to read files outside the sources, such as that of --ca.
    variables["BUILDX_BAKE_ENTITLEMENTS_FS"] = "0"
    settings = [f"tags={name}" for name in names]
    if options.pip_config is not None:
        settings.append(f'secrets=id=pip.conf,"src={options.pip_config}"')
    elif options.ca is not None:
        variables["PIP_CONFIG"] = f"[global]\ncert = {option.CA_SECRET}\n"
        settings.append("secrets=id=pip.conf,env=PIP_CONFIG")
    if options.ca is not None:
        settings.append(f'secrets=id=ca.pem,"src={options.ca}"')
    changes = [word for setting in settings for word in ("--set", f"{chosen.target}.{setting}")]
    command = [docker, "buildx", "bake", "--file", BAKE_FILE, "--load", *changes, chosen.target]
    run(command, "docs/containers.md explains how to fix most failures.", variables, source.folder)


def run(command: Sequence[str], advice: str, variables: Mapping[str, str] | None = None, at: Path = Path()) -> None:
    """Runs the command and waits for it. Raises ImageError, with the advice, if it fails."""
    environment = os.environ | (variables or {})
    # Standard output is for results only.
    with subprocess.Popen(command, cwd=at, env=environment, stdout=sys.stderr.fileno()) as process:
        try:
            status = process.wait(_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise ImageError(
                f"docker {command[1]} was terminated: it took longer than {_LIMIT_S:.0f} s. {advice}"
            ) from None
        finally:
            if process.poll() is None:
                # docker starts child processes, and older versions leave them running.
                send(descendants(os.getpid()), signal.SIGTERM)
                end_descendants(os.getpid(), _END_S)
    if status:
        raise ImageError(f"docker {command[1]} failed with exit status {status}; see its output above. {advice}")
