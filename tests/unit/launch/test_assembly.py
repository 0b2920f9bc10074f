"""Tests of tfdist.launch.assembly, as far as nobody has to come."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tfdist.errors import ConfigError
from tfdist.launch import assembly, command
from tfdist.launch.host import core
from tfdist.launch.host.host import Host
from tfdist.launch.option import option


def _known(*words: str) -> Any:
    return option.parse([*words, "sh"])[0]


def test_port_of_the_node_with_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        free = probe.getsockname()[1]
        taken = _known("--nodes", "2", "--rendezvous", f"127.0.0.1:{free}", "--key-file", "k")
        assert assembly.open_port(taken) is None, "another node on this machine has it"
    made = assembly.open_port(taken)
    assert made is not None
    made.close()
    assert assembly.open_port(_known("--nodes", "2", "--rendezvous", "192.0.2.1:5", "--key-file", "k")) is None
    assert assembly.open_port(_known("-np", "1")) is None


def test_one_node_needs_nobody(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        free = probe.getsockname()[1]
    known = _known("--nodes", "1", "--rendezvous", f"127.0.0.1:{free}", "--key-file", "k")
    known.listener = assembly.open_port(known)
    assert assembly.gathered(known, lambda _: None) is None
    assert assembly.offered(known, None) == (Host(os.uname().nodename, core.available().count),)
    assert known.num_proc == core.available().count
    assert known.listener.fileno() == -1


def test_exports() -> None:
    known = _known("-np", "1", "--export", "A,B", "--export", "A")
    assert assembly.exports(known, {"A": "1", "B": "2"}) == ("A", "B")
    with pytest.raises(ConfigError, match="--export B: not set in this environment; set it, or omit it"):
        assembly.exports(known, {"A": "1"})


def test_variables_that_are_too_large() -> None:
    known, words = option.parse(["-np", "1", "--no-mpi", "sh"])
    plan, _ = command.make_plan(known, words, {"PATH": "/usr/bin:/bin", "KERAS_LARGE": "x" * (1 << 17)})
    assembly.check_size(plan)
    there: Any = SimpleNamespace(are_tasks=False)
    with pytest.raises(ConfigError, match=r"at most 131072 can be sent\. The largest is KERAS_LARGE"):
        assembly.check_size(replace(plan, force=there))


def test_no_ssh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    known, words = option.parse(["-np", "2", "--no-mpi", "-H", "192.0.2.1:2", "sh"])
    plan, _ = command.make_plan(known, words, {"PATH": "/usr/bin:/bin"})
    assert plan.starter.elsewhere == {"192.0.2.1": (0, 2)}  # type: ignore[attr-defined]
    without = replace(plan, environment={"PATH": str(tmp_path)})
    with pytest.raises(ConfigError, match=r"no ssh on PATH to start ranks on 192.0.2.1; start an agent on each host"):
        assembly.with_summons(without, known, lambda _: None)
