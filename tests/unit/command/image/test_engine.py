"""The engine through the real SDK: what it is asked before a build, and what its faults become."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tfdist.command.image import engine as subject
from tfdist.command.image.build import ImageError


def told(name: str = "tfdist:0.2.0-cpu") -> str:
    """What an engine that cannot be used is told by."""
    with pytest.raises(ImageError) as raised, subject.connected() as size_of:
        size_of(name)
    return str(raised.value)


@pytest.mark.usefixtures("engine")
def test_an_image_that_the_engine_does_not_have() -> None:
    assert "No such image: other:1" in told("other:1")
    assert "set DOCKER_HOST to the engine of the docker command" in told("other:1")


@pytest.mark.parametrize("kind", [{"Arch": "arm64"}, {"Os": "windows"}])
def test_an_engine_of_another_kind(engine: Any, monkeypatch: pytest.MonkeyPatch, kind: dict[str, str]) -> None:
    engine.version |= kind
    assert (
        f"builds for {engine.version['Os']}/{engine.version['Arch']}, but the packages exist only for linux/amd64"
        in told()
    )
    monkeypatch.setenv("DOCKER_DEFAULT_PLATFORM", "linux/amd64")
    with subject.connected() as size_of:  # it emulates
        assert size_of("tfdist:0.2.0-cpu") == 1777 << 20


@pytest.mark.usefixtures("engine")
def test_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert told().startswith(f"the Docker engine at unix://{tmp_path}/none.sock cannot be used: ")
    assert "systemctl start docker" in told() and "usermod -aG docker $USER" in told()


def test_no_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "docker", None)
    assert "the Docker SDK for Python is not installed" in told() and "pip install 'docker>=7.2'" in told()
