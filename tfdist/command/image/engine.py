"""The Docker engine by its SDK for Python: whether it can build the image, and how large that is. It builds nothing.

The SDK is imported when an engine is asked for, so that the table of versions can be shown without it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

from tfdist.command.image.build import ImageError

_ANSWER_S = 60


@contextlib.contextmanager
def connected() -> Iterator[Callable[[str], int]]:
    """The engine that DOCKER_HOST, or else Docker's context, names: gives the size of an image in bytes.

    Raises:
        ImageError: If the SDK is missing, or there is no engine, or one that cannot build the image.
    """
    try:
        from docker import errors, from_env
    except ImportError as error:
        raise ImageError(
            f"the Docker SDK for Python is not there ({error}). Install it: pip install 'docker>=7.2'"
        ) from error
    try:
        with contextlib.closing(from_env(timeout=_ANSWER_S)) as client:
            told = client.version()
            platform = os.environ.get("DOCKER_DEFAULT_PLATFORM", f"{told['Os']}/{told['Arch']}")
            if platform != "linux/amd64":
                raise ImageError(
                    f"the Docker engine builds for {platform}, and the packages are for linux/amd64 only. Use one "
                    "that does, or, where yours can emulate it, DOCKER_DEFAULT_PLATFORM=linux/amd64 (slow)."
                )
            yield lambda name: int(client.images.get(name).attrs["Size"])
    except errors.DockerException as error:
        place = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock, or where Docker's context points")
        raise ImageError(
            f"the Docker engine at {place} cannot be used: {error}. Start it (sudo systemctl start docker), set "
            "DOCKER_HOST to the one of the docker command, or join its group (sudo usermod -aG docker $USER; who is in "
            "it is as good as root)."
        ) from error
