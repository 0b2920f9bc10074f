"""The table of releases, beside the other places that name them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from tfdist.command.image import version
from tfdist.command.image.combination import Wish, choose

ROOT = Path(__file__).resolve().parents[4]
PROJECT = (ROOT / "pyproject.toml").read_text()


def allowed(pattern: str) -> SpecifierSet:
    found = re.search(pattern, PROJECT)
    assert found is not None, pattern
    return SpecifierSet(found[1])


def test_the_defaults_are_those_of_the_dockerfile() -> None:
    lines = (ROOT / "docker" / "versions.env").read_text().splitlines()
    pinned = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    chosen = choose(Wish()).arguments()
    assert {name: pinned[name] for name in chosen} == chosen
    assert set(chosen) == {"BASE_IMAGE", "TENSORFLOW_VERSION", "KERAS_VERSION", "NUMPY_VERSION"}


def refused(specifiers: SpecifierSet, versions: Iterable[str]) -> list[str]:
    return [version for version in versions if version not in specifiers]


def test_everything_is_allowed_by_the_project() -> None:
    assert refused(allowed(r'cpu = \["tensorflow-cpu([^"]+)"'), (each.version for each in version.RELEASES)) == []
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
