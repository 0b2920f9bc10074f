"""What is named for pip, of tfdist's own metadata and of what is installed."""

from __future__ import annotations

from importlib import metadata

import pytest

from tfdist.native import requirement

LINES = [
    "numpy",
    "keras<3.17,>=3.12; extra == 'cpu'",
    "tensorflow-cpu<2.22,>=2.16.1; platform_machine == 'x86_64' and extra == 'cpu'",
    "tensorflow[and-cuda]<3,>=2.17; extra == 'cuda'",
]


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirement.metadata, "requires", lambda name: LINES)


@pytest.mark.parametrize(
    ("package", "quoted", "oldest"),
    [
        ("keras", "'keras<3.17,>=3.12'", (3, 12)),
        ("tensorflow-cpu", "'tensorflow-cpu<2.22,>=2.16.1'", (2, 16)),
        ("tensorflow", "'tensorflow<3,>=2.17'", (2, 17)),
        ("numpy", "numpy", (0, 0)),
        ("other", "other", (0, 0)),
    ],
)
def test_what_is_declared(declared: None, package: str, quoted: str, oldest: tuple[int, int]) -> None:
    assert (requirement.of(package), requirement.oldest(package)) == (quoted, oldest)


def test_an_extra(declared: None) -> None:
    assert requirement.of("tensorflow[and-cuda]") == "'tensorflow[and-cuda]<3,>=2.17'"


def test_without_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(requirement.metadata, "requires", missing)
    assert (requirement.of("keras"), requirement.oldest("keras")) == ("keras", (0, 0))


def test_the_installed_tfdist_declares_keras_and_tensorflow() -> None:
    for package in ("keras", "tensorflow", "tensorflow-cpu"):
        assert requirement.oldest(package) > (0, 0)


@pytest.mark.parametrize(
    ("installed", "machine", "wanted"),
    [
        ((), "x86_64", "tensorflow-cpu==2.21"),
        (("tensorflow-cpu",), "x86_64", "tensorflow-cpu==2.21"),
        (("tensorflow",), "x86_64", "tensorflow==2.21"),
        (("tensorflow", "nvidia-cudnn-cu12"), "x86_64", "'tensorflow[and-cuda]==2.21'"),
        ((), "aarch64", "tensorflow==2.21"),
    ],
)
def test_the_package_that_is_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, installed: tuple[str, ...], machine: str, wanted: str
) -> None:
    monkeypatch.setattr(requirement, "is_installed", lambda name: name in installed)
    monkeypatch.setattr(requirement.platform, "machine", lambda: machine)
    assert requirement.tensorflow("==2.21") == wanted
