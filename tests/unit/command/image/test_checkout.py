"""The sources of an image: which folder is a checkout, and what it says of itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tfdist import __version__
from tfdist.command.image import checkout
from tfdist.errors import ConfigError


def test_what_a_checkout_says(source: Path, commit: Callable[[], str]) -> None:
    found = checkout.read(source)
    assert found.version == __version__
    assert found.revision == commit() and len(found.revision) == 40
    assert found.pinned["BASE_IMAGE"] == "debian:bookworm-slim"


def test_revision_is_dirty_by_a_change_not_by_a_new_file(source: Path, commit: Callable[[], str]) -> None:
    (source / "new").touch()
    assert checkout.read(source).revision == commit()
    with (source / "docker" / "versions.env").open("a") as file:
        file.write("# changed\n")
    assert checkout.read(source).revision == f"{commit()}-dirty"


def test_sources_without_git_have_no_revision(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert checkout.read(source).revision == ""
    monkeypatch.delenv("GIT_DIR")
    monkeypatch.setenv("PATH", "/nowhere")
    assert checkout.read(source).revision == ""


@pytest.mark.parametrize("missing", ["docker/docker-bake.hcl", "docker/versions.env", "pyproject.toml"])
def test_another_folder(source: Path, missing: str) -> None:
    (source / missing).unlink()
    with pytest.raises(ConfigError) as refused:
        checkout.read(source)
    for text in (f"--source is '{source}'", f"it has no {missing}", "git clone", "--source FOLDER"):
        assert text in str(refused.value)
