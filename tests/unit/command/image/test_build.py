"""One run of the docker command: its words, its output as it comes, and what a failure is told to need."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tfdist.command.image import build, checkout
from tfdist.command.image.combination import Wish, choose
from tfdist.command.image.failure import ImageError

FAILS = """\
#1 [internal] load build definition from Dockerfile
#1 DONE 0.0s
#7 [system 1/3] RUN apt-get update
#7 1.2 Temporary failure resolving 'deb.debian.org'
#7 DONE 9.0s
#9 [packages-cpu 1/1] RUN --mount=type=cache pip install
#9 0.4 Collecting tensorflow-cpu
#9 0.5 {said}
#9 ERROR: process "pip" did not complete successfully: exit code: 1
#8 [wheel 1/9] RUN compile
#8 CANCELED
------
 > [packages-cpu 1/1] RUN --mount=type=cache pip install:
------
ERROR: failed to solve: process "pip" did not complete successfully
"""


def words(source: Path, wish: Wish, **more: object) -> list[str]:
    given = {"tags": ["a:b"], "extra_packages": "", "secrets": [], "identity": Path("/id")} | more
    return build.words(checkout.read(source), choose(wish), **given)  # type: ignore[arg-type]


def verdict(text: str) -> str:
    output = build.Output()
    for line in text.splitlines():
        output.read(line)
    return output.verdict()


def test_the_default_is_a_plain_build_with_labels(source: Path, commit: Callable[[], str]) -> None:
    assert words(source, Wish()) == [
        *("build", "--progress", "plain", "--file", str(source / "docker" / "Dockerfile"), "--target", "cpu"),
        *("--iidfile", "/id", "--build-arg", f"REVISION={commit()}"),
        *("--tag", "a:b", str(source)),
    ]


def test_what_differs_is_an_argument(source: Path) -> None:
    wish = Wish("cuda", "2.20", "3.12", "12.8", "3.14")
    made = words(source, wish, extra_packages="pandas x", secrets=["id=a,src=/a"], tags=["a:b", "c:d"])
    given = [value for name, value in itertools.pairwise(made) if name == "--build-arg"]
    assert given[:-1] == [
        "BASE_IMAGE=python:3.12-slim-bookworm",
        "TENSORFLOW_VERSION=2.20.0",
        "KERAS_VERSION=3.14.1",
        "CUDA_TOOLKIT_VERSION=12.8.1",
        "EXTRA_PACKAGES=pandas x",
    ]
    assert made[made.index("--secret") + 1] == "id=a,src=/a"
    assert made[-5:-1] == ["--tag", "a:b", "--tag", "c:d"]


def test_a_checkout_with_other_defaults_gets_those_of_the_table(source: Path) -> None:
    pinned = source / "docker" / "versions.env"
    pinned.write_text(pinned.read_text().replace("KERAS_VERSION=3.15.1", "KERAS_VERSION=3.15.0"))
    assert "KERAS_VERSION=3.15.1" in words(source, Wish())


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("nothing of note", "see the lines of pip above; another index is given by --pip-config FILE"),
        ("ERROR: Could not find a version that satisfies the requirement x", "which package has no build"),
        ("SSLError: CERTIFICATE_VERIFY_FAILED ... Could not find a version that satisfies", "--ca FILE"),
        ("OSError: [Errno 28] No space left on device", "docker system df"),
        ("The conflict is caused by conflicting dependencies.", "leave versions out"),
    ],
)
def test_the_step_that_failed_and_what_it_needs(said: str, advice: str) -> None:
    told = verdict(FAILS.format(said=said)).splitlines()
    assert told[0] == " in the step [packages-cpu 1/1] RUN --mount=type=cache pip install"
    assert told[1] == 'process "pip" did not complete successfully: exit code: 1'
    assert told[2].startswith("What to do: ") and advice in told[2]


def test_a_long_command_is_shortened() -> None:
    told = verdict(f"#3 [wheel 1/2] RUN {'a' * 500}\n#3 ERROR: running [{'a' * 500}]: exit code: 7\n").splitlines()
    assert told[0].startswith(" in the step [wheel 1/2] RUN aaa") and told[0].endswith("a...")
    assert told[1].startswith("...aaa") and told[1].endswith("]: exit code: 7")
    assert max(map(len, told[:2])) < 130


@pytest.mark.parametrize(
    ("step", "advice"),
    [
        ("[internal] load metadata for docker.io/library/x:1", "whether docker pull docker.io/library/x:1 works"),
        ("[system 2/4] RUN apt-get", "Debian's packages could not be installed"),
        ("[toolchain 1/2] RUN apt-get", "Debian's packages could not be installed"),
        ("[site-cuda 1/1] RUN pip", "one of --extra-packages cannot be installed beside the rest"),
        ("[wheel 5/7] RUN python setup.py build_ext", "tfdist did not compile"),
        ("[cpu 1/2] COPY", "see the lines above"),
    ],
)
def test_each_stage_has_its_advice(step: str, advice: str) -> None:
    assert advice in verdict(f"#3 {step}\n#3 ERROR: it failed\n")


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("ERROR: BuildKit is enabled but the buildx component is missing or broken.", "docker-buildx-plugin"),
        ("ERROR: Cannot connect to the Docker daemon.", "see the lines above"),
    ],
)
def test_a_failure_before_any_step(line: str, advice: str) -> None:
    told = verdict(f"{line}\n\n")
    assert told.startswith(f": {line}\n") and advice in told


def test_lines_come_while_it_runs(tmp_path: Path) -> None:
    """The command ends only when its first line was seen."""
    seen = tmp_path / "seen"
    script = (
        "import os, pathlib, sys, time; print('first', flush=True); end = time.monotonic() + 30\n"
        f"while not pathlib.Path({str(seen)!r}).exists(): assert time.monotonic() < end\n"
        "print(os.environ['DOCKER_BUILDKIT'], 'last', sep='\\n', end='')"
    )
    lines: list[str] = []

    def show(line: str) -> None:
        lines.append(line)
        seen.touch()

    build.run([sys.executable, "-c", script], show)
    assert lines == ["first", "1", "last"]


def test_a_failure_has_its_status() -> None:
    with pytest.raises(ImageError, match="failed with exit status 3: told on standard error\n"):
        build.run(
            [sys.executable, "-c", "import sys; print('told on standard error', file=sys.stderr); sys.exit(3)"], str
        )


def test_silence_ends_it(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = f"import os, pathlib, signal; pathlib.Path({str(pid)!r}).write_text(str(os.getpid())); signal.pause()"
    with pytest.raises(ImageError, match="has said nothing for 2 s, and was ended"):
        build.run([sys.executable, "-c", script], str, silence_s=2.0)
    assert not Path(f"/proc/{pid.read_text()}").exists()


def test_no_docker_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ImageError, match=r"no docker command on PATH.*apt-get install docker.io"):
        build.find()
