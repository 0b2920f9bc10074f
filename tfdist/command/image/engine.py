"""Queries the Docker engine with its Python SDK: whether it can build the image, and the image's size.

The SDK is imported only when needed, so that the table of versions can be shown without it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

from tfdist.command.image.build import ImageError

_ANSWER_S = 60


@contextlib.contextmanager
def connected() -> Iterator[Callable[[str], int]]:
    """Connects to the engine that DOCKER_HOST, or else Docker's context, names; returns a function for image sizes.

    Raises:
        ImageError: If the SDK is missing, or there is no engine, or it cannot build the image.
    """
    try:
        from docker import errors, from_env
    except ImportError as error:
        raise ImageError(
            f"the Docker SDK for Python is not installed ({error}). Install it: pip install 'docker>=7.2'"
        ) from error
    try:
        with contextlib.closing(from_env(timeout=_ANSWER_S)) as client:
            told = client.version()
            platform = os.environ.get("DOCKER_DEFAULT_PLATFORM", f"{told['Os']}/{told['Arch']}")
            if platform != "linux/amd64":
                raise ImageError(
                    f"the Docker engine builds for {platform}, but the packages exist only for linux/amd64. Use an "
                    "engine for that platform or, if yours can emulate it, DOCKER_DEFAULT_PLATFORM=linux/amd64 (slow)."
                )
            yield lambda name: int(client.images.get(name).attrs["Size"])
    except errors.DockerException as error:
        place = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock, or as set by Docker's context")
        raise ImageError(
            f"the Docker engine at {place} cannot be used: {error}. Start it (sudo systemctl start docker), set "
            "DOCKER_HOST to the engine of the docker command, or join its group (sudo usermod -aG docker $USER; its "
            "members are equivalent to root)."
        ) from error
