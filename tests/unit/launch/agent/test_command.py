"""Tests of tfdist.launch.agent.command."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tfdist.errors import ConfigError, PeerLostError
from tfdist.launch.agent import command
from tfdist.launch.host import core


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    path = tmp_path / "key"
    path.touch(mode=0o600)
    path.write_text("k" * 32)
    return ["--launcher", "[::1]:4000", "--key-file", str(path)]


def test_what_is_offered(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    posts: list[Any] = []
    monkeypatch.setattr(command, "serve", lambda post, say: posts.append(post) or 5)
    assert command.main(words) == 5
    assert command.main([*words, "--slots", "3", "--wait", "2.5", "--name", "worker-1"]) == 5
    first, second = posts
    assert (first.launcher, first.key, first.host) == (("::1", 4000), b"k" * 32, os.uname().nodename)
    assert (first.slots, first.wait_s) == (core.available().count, 600.0)
    assert (second.slots, second.wait_s, second.host) == (3, 2.5, "worker-1")


def test_launcher_that_is_not_there(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> int:
        raise PeerLostError("nobody")

    monkeypatch.setattr(command, "serve", fail)
    assert command.main(words) == 1
    assert capsys.readouterr().err == "tfdist agent: nobody\n"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--launcher", "node1", "--key-file", "k"], "'node1' is not HOST:PORT, such as node1:4000 or"),
        (["--launcher", "node1:4000"], "--key-file"),
        (["--launcher", "node1:4000", "--key-file", "k", "--slots", "0"], "'0' is not a number of ranks"),
        (["--launcher", "node1:4000", "--key-file", "none"], "--key-file none: no such file"),
    ],
)
def test_refused(given: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        command.main(given)
