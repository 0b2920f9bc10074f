"""Tests of tfdist.launch.discovery: scripts that print hosts, and scripts that do not."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tfdist.launch.discovery import DiscoveryError, find_hosts
from tfdist.launch.host import Host


@pytest.fixture
def script(tmp_path: Path) -> Any:
    def make(text: str) -> str:
        path = tmp_path / "hosts of mine.sh"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return f"'{path}'"

    return make


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("echo a:2; echo; echo ' b '", (Host("a", 2), Host("b", 3))),
        ("exit 0", ()),
        ("echo 10.0.0.7:4 # a comment of the shell", (Host("10.0.0.7", 4),)),
    ],
)
def test_hosts(script: Any, text: str, hosts: tuple[Host, ...]) -> None:
    assert find_hosts(script(text), slots_per_host=3) == hosts


def test_arguments(script: Any) -> None:
    assert find_hosts(script('echo "$1:$2"') + " a 5") == (Host("a", 5),)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("echo no such cluster >&2; exit 3", "ended with status 3: no such cluster"),
        ("kill -9 $$", "ended with status -9"),
        ("echo a:0", "'0' is not a number of slots"),
        ("echo a:b:c", "'b:c' is not a number of slots"),
        ("echo '-oProxyCommand=x:1'", "is not a host name"),
        ("echo a:1; echo a:2", "'a' is listed twice"),
        ("printf '\\377'", "can't decode"),
        ("head -c 2000000 /dev/zero", "printed 2000000 bytes"),
    ],
)
def test_junk(script: Any, text: str, reason: str) -> None:
    with pytest.raises(DiscoveryError, match=reason):
        find_hosts(script(text))


@pytest.mark.parametrize("command", ["/nowhere/script", "", "'"])
def test_no_program(command: str) -> None:
    with pytest.raises(DiscoveryError, match="cannot be run"):
        find_hosts(command)


def test_script_that_does_not_end_is_ended_with_all_it_started(script: Any, tmp_path: Path, wait_until: Any) -> None:
    with pytest.raises(DiscoveryError, match=r"has not ended within 0\.3 s"):
        find_hosts(script(f"sleep 1000 & echo $! > {tmp_path}/pid; sleep 1000"), timeout_s=0.3)
    pid = int((tmp_path / "pid").read_text())
    assert os.getpgid(0) != pid
    wait_until(lambda: _has_ended(pid), what="the end of its child")


def test_child_in_a_session_of_its_own_does_not_hold_the_answer_up(
    script: Any, tmp_path: Path, wait_until: Any
) -> None:
    """It keeps the script's output open, also when the script has ended."""
    begin = time.monotonic()
    with pytest.raises(DiscoveryError, match="has not ended within 2 s"):
        find_hosts(script(f"setsid sh -c 'echo $$ > {tmp_path}/pid; exec sleep 60' & echo a:1"), timeout_s=2)
    assert time.monotonic() - begin < 30
    pid = int((tmp_path / "pid").read_text())
    assert not _has_ended(pid)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: _has_ended(pid), what="its end")


def _has_ended(pid: int) -> bool:
    path = Path(f"/proc/{pid}/stat")
    return not path.exists() or path.read_text().rpartition(")")[2].split()[0] == "Z"
