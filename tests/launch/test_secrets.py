"""While a job runs, neither its key nor a token of the user is on a command line, in a file or in what is printed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TOKEN = "tf-token-5d0c1e7a9b3f4826"
WAITS = "open(f'up{rank}', 'w').close()\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
# The first reaches other hosts by its prefix, the second not.
VARIABLES = {"TFDIST_USER_TOKEN": TOKEN, "AWS_SECRET_ACCESS_KEY": TOKEN[::-1]}
MEMORY = Path("/dev/shm")


def _command_lines() -> Iterator[bytes]:
    """Of all processes of this machine, as anybody's `ps` shows them."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                yield (entry / "cmdline").read_bytes()
            except OSError:  # it has ended
                continue


def _files(*folders: Path) -> Iterator[tuple[Path, bytes]]:
    for folder in folders:
        for path in folder.rglob("*"):
            try:
                if stat.S_ISREG(path.lstat().st_mode):
                    yield path, path.read_bytes()
            except OSError:  # it is gone again
                continue


def _key(launch: Any) -> bytes:
    """Of the job, from the environment of its supervisors, which only their user and root can read."""
    found = set()
    for pid in launch.processes():
        variables = dict(pair.partition(b"=")[::2] for pair in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
        found.add(variables.get(b"TFDIST_RUN_KEY", b""))
        assert stat.S_IMODE(os.stat(f"/proc/{pid}/environ").st_mode) == 0o400
    (key,) = found - {b""}
    assert len(key) == 64
    return key


def _start(launch: Any, request: pytest.FixtureRequest, hosts: str) -> Any:
    words = ["-np", "2", "--verbose", "--output-filename", "logs"]
    if hosts == "this machine":
        return launch.start(*words, "python", "rank.py")
    return request.getfixturevalue("agent").start(launch, *words, "-H", "nodea:1,nodeb:1", "python", "rank.py")


def _has(text: bytes, secrets: list[bytes]) -> bool:
    return any(secret in text for secret in secrets)


@pytest.mark.parametrize("hosts", ["this machine", "two hosts"])
def test_secrets_stay_secret(
    launch: Any, request: pytest.FixtureRequest, wait_until: Any, monkeypatch: pytest.MonkeyPatch, hosts: str
) -> None:
    temporary = launch.folder / "temporary"
    temporary.mkdir()
    for name, value in (VARIABLES | {"TMPDIR": str(temporary)}).items():
        monkeypatch.setenv(name, value)
    launch.script(WAITS)
    job = _start(launch, request, hosts)
    wait_until(lambda: len(launch.files("up*")) == 2, what="the ranks")
    secrets = [_key(launch), *(value.encode() for value in VARIABLES.values())]
    shown = [line for line in _command_lines() if _has(line, secrets)]
    written = [path for path, text in _files(launch.folder, MEMORY) if _has(text, secrets)]
    (launch.folder / "go").touch()
    done = launch.end(job)
    assert done.code == 0, done.stderr
    assert "tfdistrun: running " in done.stderr
    assert ("-x TFDIST_USER_TOKEN" in done.stderr) is (hosts == "two hosts")
    assert shown == []
    assert written == []
    assert not _has((done.stdout + done.stderr).encode(), secrets)
    assert list(temporary.iterdir()) == []
