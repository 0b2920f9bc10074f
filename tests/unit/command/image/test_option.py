"""The words of `tfdist image`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfdist.command.image import option
from tfdist.command.image.combination import Wish
from tfdist.errors import ConfigError


def build(*words: str) -> option.Build:
    parsed = option.parse(["build", *words])
    assert isinstance(parsed, option.Build)
    return parsed


def test_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert build() == option.Build(Wish(), (), "", False, None, tmp_path.resolve(), None, None)


def test_every_option_arrives(tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("authority")
    (tmp_path / "pip").write_text("cert = /run/secrets/ca.pem")
    made = build(
        *("--target", "cuda", "--tensorflow", "2.20", "--python", "3.12", "--cuda", "12.8", "--keras", "3.14"),
        *("--base-image", "mine:2", "--tag", "r.example.org:5000/a/b:c", "--tag", "a/b", "--tag", "a/b", "--push"),
        *("--extra-packages", " pandas>=2,<3  scikit-learn[x]==1.9.1 ", "--save", str(tmp_path / "a.tar")),
        *("--source", str(tmp_path), "--pip-config", str(tmp_path / "pip"), "--ca", str(tmp_path / "ca")),
    )
    assert made == option.Build(
        wish=Wish("cuda", "2.20", "3.12", "12.8", "3.14", "mine:2"),
        tags=("r.example.org:5000/a/b:c", "a/b:latest"),
        extra_packages="pandas>=2,<3 scikit-learn[x]==1.9.1",
        push=True,
        save=tmp_path / "a.tar",
        source=tmp_path.resolve(),
        pip_config=(tmp_path / "pip").resolve(),
        ca=(tmp_path / "ca").resolve(),
    )


def test_versions() -> None:
    assert option.parse(["versions"]) == option.Versions(None)
    assert option.parse(["versions", "--markdown", "a.md"]) == option.Versions(Path("a.md"))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--target", "tpu"], "invalid choice: 'tpu'"),
        (["--tag", "a/Upper"], "'a/Upper' is no name of an image; expected [REGISTRY/]NAME[:TAG]"),
        (["--tag", "a:b:c"], "'a:b:c' is no name"),
        (["--tag", "a b"], "'a b' is no name"),
        (["--tag", ""], "'' is no name"),
        (["--tag", "--push"], "expected one argument"),
        (["--push"], "--push needs a --tag with the registry or the account that it goes to; got none."),
        (["--push", "--tag", "a/b", "--tag", "tfdist:cpu"], "got tfdist:cpu."),
        (["--extra-packages", "pandas; rm"], "'pandas;' is no requirement of pip"),
        (["--extra-packages", "--index x"], "'--index' is no requirement"),
        (["--extra-packages", "pandas >= 2"], "'>=' is no requirement of pip; expected packages with spaces between"),
        (["--extra-packages", "$(id)"], "'$(id)' is no requirement"),
        (["--save", "a.tar.gz"], "'a.tar.gz' ends like a compressed file"),
        (["--save", "/nowhere/a.tar"], "'/nowhere/a.tar' cannot be written: there is no folder /nowhere"),
        (["--save", "/"], "'/' is a folder; give the name of a file"),
        (["--ca", "/nowhere/ca"], "'/nowhere/ca' is not a file"),
        (["--tens", "2.21"], "unrecognized arguments: --tens"),
    ],
)
def test_refused(words: list[str], reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        build(*words)
    assert reason in str(refused.value)


def test_an_authority_that_the_configuration_does_not_name(tmp_path: Path) -> None:
    for name in ("ca", "pip"):
        (tmp_path / name).write_text("[global]\n")
    with pytest.raises(ConfigError, match=r"Add this line to its section \[global\]: cert = /run/secrets/ca.pem"):
        build("--ca", str(tmp_path / "ca"), "--pip-config", str(tmp_path / "pip"))


def test_a_file_that_dockers_secret_cannot_name(tmp_path: Path) -> None:
    (tmp_path / "a,b").touch()
    with pytest.raises(ConfigError, match="has a comma in its path"):
        build("--ca", str(tmp_path / "a,b"))


def test_a_part_must_be_named() -> None:
    with pytest.raises(ConfigError, match="required: COMMAND"):
        option.parse([])
