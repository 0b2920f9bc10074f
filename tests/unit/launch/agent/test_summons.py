"""Tests of tfdist.launch.agent.summons with programs in the place of ssh."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tfdist.errors import PeerLostError
from tfdist.launch.agent.summons import Summons
from tfdist.launch.host.host import Host
from tfdist.launch.start.starter import Ssh


def _summons(folder: Path, text: str) -> Summons:
    program = folder / "ssh"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return Summons([Host("a", 2), Host("fd00::1", 1)], Ssh(22), "", {"PATH": f"{folder}:{os.defpath}"})


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_words_and_key(path: Path, wait_until: Callable[..., None]) -> None:
    made = _summons(path, 'cat >"key-$5"; echo "$@" >"words-$5"; mv "words-$5" "said-$5"')
    made.start("[::1]:5")
    wait_until(lambda: (path / "said-a").exists() and (path / "said-fd00::1").exists(), what="both")
    assert (path / "key-a").read_bytes() == (path / "key-fd00::1").read_bytes() == made.key + b"\n"
    said = (path / "said-a").read_text()
    assert said.startswith("-o BatchMode=yes -p 22 a exec ")
    assert said.endswith("/agent/summoned.py '[::1]:5' 2 a\n")
    assert made.key.decode() not in said + repr(made)
    made.close()


def test_last_words_of_one_that_fails(path: Path, wait_until: Callable[..., None]) -> None:
    made = _summons(path, '[ "$5" = a ] && sleep 1000; echo warning; echo "ssh: no route" >&2; exit 255')
    made.start("h:5")
    wait_until(lambda: made.failed(["a", "fd00::1"]), what="the end of one")
    assert made.failed(["a", "fd00::1"]) == {"fd00::1": "ssh: no route"}
    assert made.failed(["a"]) == {}
    assert made.said() == ["[ssh fd00::1] warning", "[ssh fd00::1] ssh: no route"]
    made.close()
    assert made.failed(["a"]) == {"a": "ssh ended with status -15"}


def test_program_that_is_not_there(tmp_path: Path) -> None:
    made = Summons([Host("a", 1)], Ssh(), str(tmp_path / "srun"), {})
    with pytest.raises(PeerLostError, match="srun cannot be run: No such file or directory"):
        made.start("h:5")
