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
IDENTITY = "sha256:" + "5a" * 32
DIGEST = "sha256:" + "d1" * 32
ARCHIVE = bytes(range(256)) * 4096
SIZE = 3 << 20
VERSION = {"Version": "27.0.1", "ApiVersion": "1.41", "MinAPIVersion": "1.24", "Os": "linux", "Arch": "amd64"}

_DOCKER = """\
#!{python}
import json, os, pathlib, signal, sys
folder = pathlib.Path({folder!r})
words = sys.argv[1:]
secrets = {{}}
for word in (after for before, after in zip(words, words[1:]) if before == "--secret"):
    name, source = (part.partition("=")[2] for part in word.split(","))
    secrets[name] = pathlib.Path(source).read_text()
seen = {{"words": words, "buildkit": os.environ.get("DOCKER_BUILDKIT"), "secrets": secrets, "pid": os.getpid()}}
(folder / "seen.tmp").write_text(json.dumps(seen))
os.replace(folder / "seen.tmp", folder / "seen")
print((folder / "output").read_text(), end="", flush=True)
if (folder / "waits").exists():
    signal.pause()
status = int((folder / "status").read_text())
if not status:
    pathlib.Path(words[words.index("--iidfile") + 1]).write_text({identity!r})
sys.exit(status)
"""


@dataclass
class Command:
    """The docker command: what it is to say and to return, and what it was given."""

    folder: Path

    def will(self, output: str = "#1 [system 1/3] RUN apt-get\n#1 DONE 1.0s\n", status: int = 0) -> None:
        (self.folder / "output").write_text(output)
        (self.folder / "status").write_text(str(status))

    def will_wait(self) -> None:
        (self.folder / "waits").touch()

    @property
    def called(self) -> bool:
        return (self.folder / "seen").exists()

    @property
    def seen(self) -> dict[str, Any]:
        return json.loads((self.folder / "seen").read_text())

    def given(self, name: str) -> list[str]:
        words = self.seen["words"]
        return [after for before, after in itertools.pairwise(words) if before == name]


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    folder = tmp_path / "docker"
    (folder / "bin").mkdir(parents=True)
    made = folder / "bin" / "docker"
    made.write_text(_DOCKER.format(python=sys.executable, folder=str(folder), identity=IDENTITY))
    made.chmod(0o755)
    monkeypatch.setenv("PATH", f"{made.parent}:/usr/bin:/bin")
    command = Command(folder)
    command.will()
    return command


@dataclass
class Engine:
    """An engine's answers, and what it was asked."""

    version: dict[str, str] = field(default_factory=lambda: dict(VERSION))
    images: list[str] = field(default_factory=lambda: [IDENTITY])
    pushed: list[dict[str, Any]] = field(
        default_factory=lambda: [{"status": "Preparing", "id": "l"}, {"aux": {"Digest": DIGEST}}]
    )
    identity: str = IDENTITY
    digest: str = DIGEST
    archive: bytes = ARCHIVE
    cut: bool = False  # the connection ends before the last piece of a stream
    asked: list[tuple[str, str]] = field(default_factory=list)
    logins: list[str] = field(default_factory=list)
    address: str = ""

    def answer(self, path: str) -> tuple[int, list[bytes]]:
        """Status, and the pieces of the body."""
        if path == "/version":
            return 200, [json.dumps(self.version).encode()]
        found = re.fullmatch(r"/images/(.+)/(json|get|push)", path)
        if found is None:
            return 404, [b'{"message": "page not found"}']
        if found[2] == "push":
            return 200, [json.dumps(told).encode() + b"\r\n" for told in self.pushed]
        if found[1] not in self.images:
            return 404, [json.dumps({"message": f"No such image: {found[1]}"}).encode()]
        if found[2] == "get":
            return 200, [self.archive[:500_000], self.archive[500_000:]]
        told = {"Id": IDENTITY, "Size": SIZE, "RepoTags": self.images[1:], "RootFS": {"Layers": ["a", "b"]}}
        return 200, [json.dumps(told).encode()]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """An engine at DOCKER_HOST, which the real SDK speaks to."""
    pytest.importorskip("docker", reason="the Docker SDK is not there: pip install 'docker>=7.2'")
    made = Engine()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = re.sub(r"^/v[0-9.]+(?=/)", "", self.path.partition("?")[0])
            made.asked.append((self.command, re.sub(r"^/v[0-9.]+(?=/)", "", self.path)))
            made.logins.append(self.headers.get("X-Registry-Auth", ""))
            status, pieces = made.answer(path)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            whole = pieces[:-1] if made.cut and path.endswith(("/get", "/push")) else [*pieces, b""]
            for piece in whole:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.close_connection = len(whole) == len(pieces) - 1

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def log_message(self, *_: object) -> None:
            """Nothing: what was asked is in the test's hands."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    made.address = f"tcp://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("DOCKER_HOST", made.address)
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
    for name in ("docker/Dockerfile", "docker/versions.env", "pyproject.toml"):
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
        done = subprocess.run(
            ["git", "-C", str(source), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=60
        )
        return done.stdout.strip()

    return ask
