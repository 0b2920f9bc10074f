"""A docker command, an engine and a checkout that are not real, for the tests of the image builder."""

from __future__ import annotations

import http.server
import itertools
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[4]
MIB = 1777

_DOCKER = """\
#!{python}
import json, os, pathlib, signal, subprocess, sys
folder = pathlib.Path({folder!r})
words = sys.argv[1:]
if words == ["buildx", "version"]:
    sys.exit((folder / "no-buildx").exists())
worker = None
if (folder / "waits").exists():
    worker = subprocess.Popen(["sleep", "600"])
with (folder / "calls").open("a") as file:
    seen = {{"words": words, "variables": dict(os.environ), "folder": os.getcwd()}}
    file.write(json.dumps(seen | {{"pids": worker and [os.getpid(), worker.pid]}}) + "\\n")
print("on standard output", flush=True)
if worker:
    signal.pause()
fails = folder / "fails"
sys.exit(9 if fails.exists() and fails.read_text() in words else 0)
"""


@dataclass
class Docker:
    """The docker command: what is to become of it, and what it was given."""

    folder: Path

    def lacks_buildx(self) -> None:
        (self.folder / "no-buildx").touch()

    def will_wait(self) -> None:
        """For ever, as does a process that it has started."""
        (self.folder / "waits").touch()

    def will_fail(self, word: str) -> None:
        """Whenever it is given that word."""
        (self.folder / "fails").write_text(word)

    @property
    def calls(self) -> list[dict[str, Any]]:
        file = self.folder / "calls"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    @property
    def settings(self) -> list[str]:
        """What --set had."""
        words = self.calls[0]["words"]
        return [after for before, after in itertools.pairwise(words) if before == "--set"]


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Docker:
    folder = tmp_path / "docker"
    (folder / "bin").mkdir(parents=True)
    made = folder / "bin" / "docker"
    made.write_text(_DOCKER.format(python=sys.executable, folder=str(folder)))
    made.chmod(0o755)
    monkeypatch.setenv("PATH", f"{made.parent}:/usr/bin:/bin")
    return Docker(folder)


@dataclass
class Engine:
    """An engine's answers, and what it was asked."""

    version: dict[str, str] = field(
        default_factory=lambda: {"Version": "27.0.1", "ApiVersion": "1.41", "Os": "linux", "Arch": "amd64"}
    )
    images: set[str] = field(default_factory=lambda: {"tfdist:0.2.0-cpu"})
    asked: list[str] = field(default_factory=list)

    def answer(self, path: str) -> tuple[int, object]:
        self.asked.append(path)
        if path == "/version":
            return 200, self.version
        name = path.removeprefix("/images/").removesuffix("/json")
        if name not in self.images:
            return 404, {"message": f"No such image: {name}"}
        return 200, {"Id": "sha256:5a", "Size": MIB << 20, "RepoTags": [name]}


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """An engine at DOCKER_HOST, which the real SDK speaks to."""
    pytest.importorskip("docker", reason="the Docker SDK is not there: pip install 'docker>=7.2'")
    made = Engine()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, told = made.answer(re.sub(r"^/v[0-9.]+(?=/)", "", self.path))
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(told).encode())

        def log_message(self, *_: object) -> None:
            """Nothing: what was asked is in the test's hands."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker-config"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("DOCKER_DEFAULT_PLATFORM", raising=False)
    yield made
    server.shutdown()
    server.server_close()
    thread.join(10)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A checkout with what the builder looks at, committed."""
    folder = tmp_path / "source"
    for name in ("docker/docker-bake.hcl", "docker/versions.env", "pyproject.toml"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text((ROOT / name).read_text())
    (folder / "tfdist" / "csrc").mkdir(parents=True)
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "first"]):
        subprocess.run([*git, *words], check=True, timeout=60)
    return folder


@pytest.fixture
def commit(source: Path) -> Callable[[], str]:
    """The commit of the checkout."""

    def ask() -> str:
        command = ["git", "-C", str(source), "rev-parse", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()

    return ask
