"""Tests of tfdist.launch.host.probe with an ssh that is a script."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tfdist.launch.host import probe

SSH = """\
#!/bin/sh
echo "$*" >>"$SSH_LOG"
for word; do host=$last last=$word; done
case $host in
  down) printf 'Warning: slow\\nssh: connect to host down port 22: Connection refused\\r\\n' >&2; exit 255 ;;
  mute) exit 3 ;;
  frozen) exec sleep 100 ;;
esac
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "ssh"
    program.write_text(SSH)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("SSH_LOG", str(tmp_path / "log"))
    return tmp_path / "log"


def test_hosts_that_fail_are_told_with_the_last_words_of_ssh(log: Path) -> None:
    assert probe.unreachable(["up", "down", "mute"], ["-o", "BatchMode=yes"]) == {
        "down": "ssh: connect to host down port 22: Connection refused",
        "mute": "exit status 3",
    }
    assert sorted(log.read_text().splitlines()) == [
        f"-o ConnectTimeout=5 -o BatchMode=yes {name} true" for name in ("down", "mute", "up")
    ]


def test_host_that_does_not_answer_takes_no_longer_than_promised(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_PATIENCE_S", 0.5)
    begin = time.monotonic()
    assert probe.unreachable(["frozen", "up", "frozen2"], []) == {"frozen": "no answer within 0.5 s"}
    assert time.monotonic() - begin < 10


def test_nobody_is_accused_without_ssh(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(log))
    assert probe.unreachable(["down"], []) == {}
    assert not log.exists()


def test_no_host_no_question(log: Path) -> None:
    assert probe.unreachable([], []) == {}
    assert not log.exists()
