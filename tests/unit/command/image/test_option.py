"""The words of `tfdist image`: what is refused before there is need of Docker or sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfdist.command.image import option
from tfdist.errors import ConfigError


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--target", "tpu"], "invalid choice: 'tpu'"),
        (["--tag", "--push"], "expected one argument"),
        (["--target", "cpu", "--target", "cuda", "--tag", "a:b"], "--tag a:b would name 2 images; expected {target}"),
        (["--push"], "--push needs a --tag with a registry or an account; received none."),
        (["--push", "--tag", "a/b", "--tag", "tfdist:cpu"], "received tfdist:cpu."),
        (["--save", "/nowhere/a.tar"], "'/nowhere/a.tar' cannot be written; use a file name in an existing folder"),
        (["--save", "/"], "'/' cannot be written"),
        (["--ca", "/nowhere/ca"], "'/nowhere/ca' is not a file"),
        (["--tens", "2.21"], "unrecognized arguments: --tens"),
    ],
)
def test_refused(words: list[str], reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        option.parse(["build", *words])
    assert reason in str(refused.value)


def test_an_authority_that_the_configuration_does_not_name(tmp_path: Path) -> None:
    for name in ("ca", "pip"):
        (tmp_path / name).write_text("[global]\n")
    with pytest.raises(ConfigError, match=r"Add this line to its section \[global\]: cert = /run/secrets/ca.pem"):
        option.parse(["build", "--ca", str(tmp_path / "ca"), "--pip-config", str(tmp_path / "pip")])


def test_files_are_those_of_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The build runs in another."""
    (tmp_path / "ca").touch()
    monkeypatch.chdir(tmp_path)
    assert option.parse(["build", "--ca", "ca"]).ca == tmp_path / "ca"


def test_a_part_must_be_named() -> None:
    with pytest.raises(ConfigError, match="required: COMMAND"):
        option.parse([])
