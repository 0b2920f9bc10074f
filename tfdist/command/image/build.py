"""One run of `docker build`: its words, its output as it comes, and what it was that failed. It asks no engine.

BuildKit is reached by the docker command alone: the Docker SDK for Python speaks to the builder before it.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tfdist.command.image.checkout import Checkout
from tfdist.command.image.combination import Combination
from tfdist.command.image.failure import ImageError

# A step that compiles or installs says something more often than that.
SILENCE_S = 1800.0
_END_S = 20.0
_STEP_CHARACTERS = 100
# What a line of a step that failed means, the most telling first.
_ADVICE = (
    (
        "buildx component is missing",
        "install BuildKit's command; Debian calls it docker-buildx, Docker's own packages docker-buildx-plugin",
    ),
    (
        "No space left on device",
        "make room where the engine keeps its images; docker system df shows what they take, and "
        "docker system prune deletes what is not used",
    ),
    ("Killed signal terminated program", "the compiler ran out of memory; give the engine 4 GB or more"),
    ("the base image has Python", "give the --python that --base-image has"),
    ("CERTIFICATE_VERIFY_FAILED", "give pip the certificate authority of your network: --ca FILE"),
    (
        "conflicting dependencies",
        "ask for packages that go together; pip names them above. In --extra-packages, leave versions out",
    ),
    (
        "Temporary failure (?:in name resolution|resolving)",
        "the build does not reach the network; see whether the engine's containers do: "
        "docker run --rm debian:bookworm-slim apt-get update",
    ),
    (
        "Could not find a version that satisfies",
        "see in the lines of pip above which package has no build; another index is given by --pip-config FILE",
    ),
)
# What the stages of docker/Dockerfile need, where no line said more.
_STAGES = (
    (
        r"\[internal\] load metadata for (\S+)",
        r"the base image \1 could not be got; see whether docker pull \1 works, or give another --base-image",
    ),
    (
        r"\[(?:system|toolchain) ",
        "Debian's packages could not be installed; see the lines of apt-get above, and whether --base-image is "
        "Debian 12 or 13",
    ),
    (
        r"\[packages-",
        "see the lines of pip above; another index is given by --pip-config FILE, an authority by --ca FILE",
    ),
    (r"\[site-", "see the lines of pip above: one of --extra-packages cannot be installed beside the rest"),
    (
        r"\[wheel ",
        "tfdist did not compile; see the lines above, and whether --source is a release or a changed checkout",
    ),
)


@dataclass
class Output:
    """What BuildKit said: the names of the steps, which of them failed first, and why."""

    names: dict[str, str] = field(default_factory=dict)
    failed: str = ""
    reason: str = ""
    last: str = ""
    _advice: dict[str, int] = field(default_factory=dict)  # by step, "" for lines of none: place in _ADVICE

    def read(self, line: str) -> None:
        found = re.match(r"#(\d+) (.*)", line)
        step, rest = (found[1], found[2]) if found else ("", line)
        if step and rest.startswith("["):
            self.names.setdefault(step, rest)
        elif step and rest.startswith("ERROR: ") and not self.failed:
            self.failed, self.reason = step, rest.removeprefix("ERROR: ")
        if rest.strip():
            self.last = rest.strip()
        places = (place for place, (pattern, _) in enumerate(_ADVICE) if re.search(pattern, rest))
        self._advice[step] = min(self._advice.get(step, len(_ADVICE)), next(places, len(_ADVICE)))

    def verdict(self) -> str:
        """Where it failed and what to do."""
        name = self.names.get(self.failed, self.failed)
        step = f"{_beginning(name)}\n{_end_of(self.reason)}"
        where = f" in the step {step}" if self.failed else f": {self.last}"
        return f"{where}\nWhat to do: {self._what_to_do(name)}."

    def _what_to_do(self, name: str) -> str:
        place = min(self._advice.get(step, len(_ADVICE)) for step in (self.failed, ""))
        if place < len(_ADVICE):
            return _ADVICE[place][1]
        found = ((re.match(pattern, name), advice) for pattern, advice in _STAGES)
        return next((match.expand(advice) for match, advice in found if match), "see the lines above")


def _beginning(text: str) -> str:
    """A step's name has its whole command, and so has the error of one that failed."""
    return text if len(text) <= _STEP_CHARACTERS else f"{text[:_STEP_CHARACTERS]}..."


def _end_of(text: str) -> str:
    return text if len(text) <= _STEP_CHARACTERS else f"...{text[-_STEP_CHARACTERS:]}"


def find() -> str:
    """The docker command. Raises ImageError if there is none."""
    command = shutil.which("docker")
    if command is None:
        raise ImageError(
            "there is no docker command on PATH, which builds the image. Install Docker Engine 20.10 or newer; "
            "on Debian: apt-get install docker.io docker-buildx"
        )
    return command


def words(
    checkout: Checkout,
    combination: Combination,
    tags: Sequence[str],
    extra_packages: str,
    secrets: Sequence[str],
    identity: Path,
) -> list[str]:
    """What follows `docker`, which is to write the image's id into the file `identity`.

    What docker/versions.env says too is left out, so that the layers are those of a plain `docker build`.
    """
    arguments = {name: value for name, value in combination.arguments().items() if checkout.pinned.get(name) != value}
    if extra_packages:
        arguments["EXTRA_PACKAGES"] = extra_packages
    arguments["REVISION"] = checkout.revision
    command = ["build", "--progress", "plain", "--file", str(checkout.dockerfile), "--target", combination.target]
    command += ["--iidfile", str(identity)]
    for name, value in arguments.items():
        command += ["--build-arg", f"{name}={value}"]
    for secret in secrets:
        command += ["--secret", secret]
    for tag in tags:
        command += ["--tag", tag]
    return [*command, str(checkout.folder)]


def run(command: Sequence[str], show: Callable[[str], object], silence_s: float = SILENCE_S) -> None:
    """Runs it and shows each line as it comes.

    Raises:
        ImageError: If it fails; with the step that did, and what to do.
    """
    output = Output()
    environment = os.environ | {"DOCKER_BUILDKIT": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            for line in _lines(process, silence_s):
                show(line)
                output.read(line)
            status = process.wait(_END_S)
        finally:
            if process.poll() is None:
                _end(process)
    if status:
        raise ImageError(f"the build failed with exit status {status}{output.verdict()}")


def _lines(process: subprocess.Popen[bytes], silence_s: float) -> Iterator[str]:
    assert process.stdout is not None
    descriptor = process.stdout.fileno()
    rest = b""
    while True:
        ready, _, _ = select.select([descriptor], [], [], silence_s)
        if not ready:
            raise ImageError(
                f"docker build has said nothing for {silence_s:.0f} s, and was ended. See whether the engine still "
                "answers (docker ps), and try again: what was built is kept."
            )
        piece = os.read(descriptor, 1 << 16)
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace").rstrip("\r")
        if not piece:
            break
    if rest:
        yield rest.decode(errors="replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_END_S)
