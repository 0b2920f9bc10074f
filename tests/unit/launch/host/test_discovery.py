"""Tests of tfdist.launch.host.discovery: scripts that print hosts, and scripts that do not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tfdist.launch.host import discovery
from tfdist.launch.host.discovery import DiscoveryError, NoHostError, find_hosts, wait_for_hosts
from tfdist.launch.host.host import Host

HANGS = "echo $$ > {}; exec sleep 1000"


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
        ("echo no such cluster >&2; exit 3", "exited with status 3: no such cluster"),
        ("kill -9 $$", "exited with status -9"),
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


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("exit 0", "no host: stdout '', stderr ''"),
        ("echo; echo; echo no credentials >&2", r"no host: stdout '\\n\\n', stderr 'no credentials'"),
    ],
)
def test_empty_list(script: Any, text: str, reason: str) -> None:
    with pytest.raises(NoHostError, match=reason):
        find_hosts(script(text))


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("/nowhere/script", "/nowhere/script: no such file"),
        ("", "the command is empty; give the full path of a script"),
        ("'", "No closing quotation"),
        ("no-such", "no-such: no such command on PATH; use its full path"),
        ("hosts.sh", "hosts.sh is not on PATH; use its full path: {folder}/hosts.sh"),
        ("./plain.sh", "./plain.sh is not executable; run chmod \\+x {folder}/plain.sh"),
        ("./bare.sh", "its first line names no interpreter; add a first line such as #!/bin/sh"),
        ("./old.sh", "names the interpreter '/no/such/sh', which does not exist; use one that exists"),
        (
            "./windows.sh",
            r"the interpreter '/bin/sh\\r', which .* Windows line endings: sed -i 's/\\r\$//' .*/windows.sh",
        ),
    ],
)
def test_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, reason: str) -> None:
    monkeypatch.chdir(tmp_path)
    texts = {
        "hosts": "#!/bin/sh",
        "plain": "#!/bin/sh",
        "bare": "",
        "old": "#! /no/such/sh -e",
        "windows": "#!/bin/sh\r",
    }
    for name, first in texts.items():
        (tmp_path / f"{name}.sh").write_text(f"{first}\necho a\n", newline="")
        (tmp_path / f"{name}.sh").chmod(0o644 if name == "plain" else 0o755)
    with pytest.raises(DiscoveryError, match="it cannot be run: .*" + reason.format(folder=tmp_path)):
        find_hosts(command)


def test_first_hosts_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "LOOK_S", 0.001)
    answers: list[tuple[Host, ...]] = [(), (), (Host("a", 1),)]
    said: list[str] = []

    def look() -> tuple[Host, ...]:
        answer = answers.pop(0)
        if not answer:
            raise NoHostError("it printed no host: stdout ''")
        return answer

    assert wait_for_hosts(look, 600, said.append) == (Host("a", 1),)
    assert said == [
        "it printed no host: stdout ''; waiting up to 600 s for hosts (--elastic-timeout)",
    ]


def test_first_hosts_that_do_not_come(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "LOOK_S", 0.001)
    command = script("echo not yet >&2")
    with pytest.raises(NoHostError, match=r"stderr 'not yet', and printed none within 0\.1 s \(--elastic-timeout\)"):
        wait_for_hosts(lambda: find_hosts(command), 0.1, lambda _: None)


def test_script_that_fails_is_not_waited_for(script: Any) -> None:
    command = script("exit 3")
    with pytest.raises(DiscoveryError, match="status 3"):
        wait_for_hosts(lambda: find_hosts(command), 600, lambda _: None)


def test_script_that_does_not_end_is_ended_with_all_it_started(script: Any, tmp_path: Path, wait_until: Any) -> None:
    with pytest.raises(DiscoveryError, match=r"did not finish within 0\.3 s"):
        find_hosts(script(f"sleep 1000 & echo $! > {tmp_path}/pid; sleep 1000"), timeout_s=0.3)
    pid = int((tmp_path / "pid").read_text())
    assert os.getpgid(0) != pid
    wait_until(lambda: _has_ended(pid), what="the end of its child")


def test_script_is_ended_by_ctrl_c(script: Any, tmp_path: Path, wait_until: Any) -> None:
    read = "head -c 200000 /dev/zero"  # more than a pipe holds, so it is being read
    with pytest.raises(KeyboardInterrupt):
        find_hosts(script(f"echo $$ > {tmp_path}/pid; {read}; kill -INT $PPID; exec sleep 1000"))
    wait_until(lambda: _has_ended(int((tmp_path / "pid").read_text())), what="its end")


def test_child_in_its_own_session_does_not_delay_the_answer(script: Any, tmp_path: Path, wait_until: Any) -> None:
    """It keeps the script's output open, also when the script has ended."""
    begin = time.monotonic()
    with pytest.raises(DiscoveryError, match="did not finish within 2 s"):
        find_hosts(script(f"setsid sh -c 'echo $$ > {tmp_path}/pid; exec sleep 60' & echo a:1"), timeout_s=2)
    assert time.monotonic() - begin < 30
    pid = int((tmp_path / "pid").read_text())
    assert not _has_ended(pid)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: _has_ended(pid), what="its end")


def _has_ended(pid: int) -> bool:
    path = Path(f"/proc/{pid}/stat")
    return not path.exists() or path.read_text().rpartition(")")[2].split()[0] == "Z"


def test_script_ends_with_the_process_that_runs_it(script: Any, tmp_path: Path, wait_until: Any) -> None:
    place = tmp_path / "pid"
    looks = f"from tfdist.launch.host.discovery import find_hosts; find_hosts({script(HANGS.format(place))!r})"
    with subprocess.Popen([sys.executable, "-c", looks]) as process:
        wait_until(lambda: place.exists() and place.read_text().endswith("\n"), what="its start")
        process.kill()
    wait_until(lambda: _has_ended(int(place.read_text())), what="its end")
