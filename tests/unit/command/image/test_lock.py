"""docker/lock is of docker/versions.env and fits pyproject.toml; docker/install.sh takes it for what it is of."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tfdist.command.image.combination import choose

DOCKER = Path(__file__).resolve().parents[4] / "docker"
# Part of Python since 3.11; before, pytest brings the same as tomli.
tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
PROJECT = tomllib.loads((DOCKER.parent / "pyproject.toml").read_text())["project"]
KINDS = ("cpu", "cuda", "sbom")
REMEDY = "run: make lock"


def lock(kind: str) -> str:
    return (DOCKER / "lock" / f"{kind}.txt").read_text()


def made_for(kind: str) -> list[str]:
    """The lines that say what it is of: the Python, and requirements."""
    return re.findall(r"^#: (.*)$", lock(kind), re.MULTILINE)


def pins(kind: str) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", lock(kind), re.MULTILINE))


def requirements(kind: str, **variables: str) -> list[str]:
    given = variables | {"PATH": "/usr/bin:/bin"}
    done = subprocess.run([DOCKER / "requirements.sh", kind], env=given, capture_output=True, text=True, timeout=60)
    return done.stdout.splitlines()


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_of_the_defaults(kind: str) -> None:
    chosen = choose("cuda" if kind == "cuda" else "cpu")
    toolkit = chosen.arguments()["CUDA_TOOLKIT_VERSION"]
    expected = [f"python {chosen.python.version}", *requirements(kind, CUDA_TOOLKIT_VERSION=toolkit)]
    assert made_for(kind) == expected, REMEDY


@pytest.mark.parametrize("kind", KINDS)
def test_it_has_what_is_required_and_what_the_project_allows(kind: str) -> None:
    own = [*made_for(kind)[1:]]
    if kind != "sbom":
        own += [*PROJECT["dependencies"], *PROJECT["optional-dependencies"][kind]]
    found = pins(kind)
    for requirement in map(Requirement, own):
        if requirement.marker is None or requirement.marker.evaluate({"platform_machine": "x86_64"}):
            version = found[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version, prereleases=True), f"{requirement}, not {version}; {REMEDY}"


@pytest.mark.parametrize("kind", KINDS)
def test_each_package_has_hashes_and_nothing_names_an_index(kind: str) -> None:
    parts = re.split(r"^(?=[a-z])", lock(kind), flags=re.MULTILINE)[1:]
    assert len(parts) == len(pins(kind))
    for part in parts:
        assert re.fullmatch(r"\S+==\S+( \\\n    --hash=sha256:[0-9a-f]{64})+\n", part), part[:200]


# Python 3.11, and a pip that only tells.
PROGRAMS = {"python3": 'echo "python $PYTHON"', "uname": 'echo "$MACHINE"', "pip": 'echo "$@"'}


@pytest.mark.parametrize(
    ("kind", "variables", "locked"),
    [
        ("cpu", {}, True),
        ("sbom", {}, True),
        ("cuda", {"CUDA_TOOLKIT_VERSION": "12.9.1"}, True),
        ("cuda", {}, False),
        ("cpu", {"PYTHON": "3.12"}, False),
        ("cpu", {"MACHINE": "aarch64"}, False),
        ("cpu", {"KERAS_VERSION": "3.14.1"}, False),
        ("cpu", {"UNLOCKED": "1"}, False),
    ],
)
def test_only_what_it_is_of_is_installed_from_it(
    tmp_path: Path, kind: str, variables: dict[str, str], locked: bool
) -> None:
    for name, text in PROGRAMS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    file = tmp_path / "requirements.txt"
    given = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHON": "3.11", "MACHINE": "x86_64"} | variables
    done = subprocess.run(
        [DOCKER / "install.sh", kind, file], env=given, capture_output=True, text=True, timeout=60, check=True
    )
    by_version, by_hash = f"--requirement {file}", f"--require-hashes --requirement {DOCKER}/lock/{kind}.txt"
    assert done.stdout == f"install {by_hash if locked else by_version}\n"
    assert (f"not from lock/{kind}.txt" in done.stderr) is not locked
    assert file.read_text().splitlines() == requirements(kind, **variables), "what constrains more packages"
