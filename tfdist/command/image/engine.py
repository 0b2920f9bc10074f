"""The Docker engine by its SDK for Python: finding it, looking at an image, saving and pushing it. It builds nothing.

The SDK is imported when an engine is asked for, so that the table of versions can be shown without it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tfdist.command.image.failure import ImageError
from tfdist.command.image.progress import Progress, mebibytes
from tfdist.system.atomic_file import write_atomically

_ANSWER_S = 60
# The engine makes an archive before it sends the first byte of it.
_STREAM_S = 600
# That of engine 20.10, the first that takes RUN --mount without being asked to.
_OLDEST_API = (1, 41)


class Engine:
    """An engine that answers. Make it by `connect`."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def close(self) -> None:
        self._client.close()

    def size(self, identity: str) -> int:
        """Bytes of an image without compression, with the layers that it shares. Raises ImageError if there is none."""
        from docker import errors

        with _translated(f"{identity} was built, and could not be looked at"):
            try:
                return int(self._client.images.get(identity).attrs["Size"])
            except errors.ImageNotFound as error:
                raise ImageError(
                    f"{identity} was built, but the engine at {self._client.api.base_url} does not have it. Either "
                    "docker uses a builder that keeps images to itself (docker buildx use default brings back the "
                    "engine's), or the command and the SDK speak to different engines; set DOCKER_HOST for both."
                ) from error

    def save(self, name: str, size: int, path: Path) -> None:
        """Writes the image as `docker load` takes it; the file is there whole or not at all. Raises ImageError."""
        progress = Progress(f"saving {path}")
        doing = f"{name} was built, but not saved as {path}"

        def fill(file: Path) -> None:
            written = 0
            with file.open("wb") as archive:
                for piece in self._client.api.get_image(name):
                    written += archive.write(piece)
                    progress.at(written, max(size, written))

        with _translated(doing):
            try:
                write_atomically(path, fill)
            except OSError as error:
                if error.errno is None:  # one of the connection, which the SDK derives from it
                    raise
                raise ImageError(
                    f"{doing}: {error}. The file takes about {mebibytes(size)}; the image is kept: try "
                    f"docker save --output FILE {name}"
                ) from error

    def push(self, name: str) -> str:
        """Sends the image to its registry, and returns the digest it has there. Raises ImageError."""
        host = name.split("/")[0]
        login = f"docker login {host}" if "." in host or ":" in host else "docker login"
        repository, _, tag = name.rpartition(":")
        doing = f"{name} was built, but not pushed"
        advice = f"Log in ({login}), see that the account may write there, and try: docker push {name}"
        moved = Moved(Progress(f"pushing {name}"))
        digest = ""
        with _translated(doing):
            for told in self._client.api.push(repository, tag=tag, stream=True, decode=True):
                if "error" in told:
                    message = told.get("errorDetail", {}).get("message", told["error"])
                    raise ImageError(f"{doing}: {message}\n{advice}")
                digest = told.get("aux", {}).get("Digest", digest)
                moved.read(told)
        if not digest:
            raise ImageError(f"{doing}: the engine ended without telling the digest that it has there.\n{advice}")
        return digest


class Moved:
    """What a push has sent, from the engine's messages, each of one layer."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._layers: dict[str, tuple[int, int]] = {}

    def read(self, told: dict[str, Any]) -> None:
        detail = told.get("progressDetail") or {}
        if "id" in told and "current" in detail:
            current = detail["current"]
            # The engine counts the archive's own headers too, and goes beyond its total.
            self._layers[told["id"]] = (current, max(current, detail.get("total", current)))
            sent, total = (sum(column) for column in zip(*self._layers.values(), strict=True))
            self._progress.at(sent, total)


def connect() -> Engine:
    """The engine that DOCKER_HOST, or else Docker's context, names.

    Raises:
        ImageError: If the SDK is missing, or there is no engine, or it is too old or of another kind.
    """
    try:
        from docker import errors, from_env
    except ImportError as error:
        raise ImageError(
            f"the Docker SDK for Python is not there ({error}). Install it: pip install 'docker>=7.2'"
        ) from error
    try:
        client = from_env(timeout=_ANSWER_S)
        told = client.version()
    except errors.DockerException as error:
        raise ImageError(_unreachable(str(error))) from error
    client.api.timeout = _STREAM_S
    engine = Engine(client)
    if problem := _unfit(told):
        engine.close()
        raise ImageError(problem)
    return engine


def _unreachable(error: str) -> str:
    place = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock, or where Docker's context points")
    if "Permission" in error:
        return (
            f"the Docker engine at {place} may not be used by this user. Join its group: "
            "sudo usermod -aG docker $USER, then log in again. Whoever is in it is as good as root on this machine."
        )
    return (
        f"no Docker engine answers at {place}: {error}. Start it (sudo systemctl start docker), or set "
        "DOCKER_HOST to the one to use."
    )


def _unfit(told: dict[str, Any]) -> str:
    """Why an engine with this answer to "version" cannot build the image; empty if it can."""
    api = tuple(int(number) for number in told["ApiVersion"].split("."))
    if api < _OLDEST_API:
        return (
            f"the Docker engine is {told['Version']} (API {told['ApiVersion']}), and its BuildKit does not know "
            "RUN --mount. Expected: 20.10 (API 1.41) or newer."
        )
    platform = os.environ.get("DOCKER_DEFAULT_PLATFORM", f"{told['Os']}/{told['Arch']}")
    if platform != "linux/amd64":
        return (
            f"the Docker engine builds for {platform}, and the packages of the image are there for linux/amd64 only. "
            "Use an engine of that kind, or, where it can emulate one, DOCKER_DEFAULT_PLATFORM=linux/amd64 (slow)."
        )
    return ""


@contextlib.contextmanager
def _translated(doing: str) -> Iterator[None]:
    """The SDK lets through what its libraries raise while an answer streams in."""
    import requests
    import urllib3
    from docker import errors

    try:
        yield
    except (errors.DockerException, requests.RequestException, urllib3.exceptions.HTTPError) as error:
        raise ImageError(f"{doing}: {error}") from error
