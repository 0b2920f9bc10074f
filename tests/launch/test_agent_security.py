"""What others on the network can see of a job with agents, and do to it: nothing, and nothing."""

from __future__ import annotations

import contextlib
import random
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from company import COMMAND

from tfdist.launch.wire import introduction, tls
from tfdist.protocol.handshake import RefusedError
from tfdist.protocol.key_file import read

pytestmark = pytest.mark.starter("as given")

TOKEN = "secret-of-the-user-0123456789"
SAYS = "import os\nprint(os.environ['MINE'], os.environ['RANK'])\n"
WAITS = """\
import os, time
open('up' + os.environ['RANK'], 'w').close()
while not os.path.exists('end'): time.sleep(0.02)
"""


class Relay:
    """Passes bytes on between an agent and a launcher, as whoever owns a router can, and keeps them."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        # What the ends that dialled have said, by connection, and all that was said by both.
        self.dialled: list[bytearray] = []
        self.seen = bytearray()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                near = self._listener.accept()[0]
                said = bytearray()
                self.dialled.append(said)
                threading.Thread(target=self._pass, args=(near, said), daemon=True).start()

    def _pass(self, near: socket.socket, said: bytearray) -> None:
        with near, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._to), 10) as far:
            while True:
                for end in select.select([near, far], [], [])[0]:
                    data = end.recv(1 << 16)
                    if not data:
                        return
                    self.seen += data
                    if end is near:
                        said += data
                    (far if end is near else near).sendall(data)

    def close(self) -> None:
        self._listener.close()


class Impostor:
    """Has a certificate of its own, and passes on what is within TLS: the handshake, too."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        identity = tls.Identity()
        with contextlib.suppress(OSError):
            while True:
                near = identity.accept(self._listener.accept()[0])
                with near.connection, contextlib.suppress(OSError):
                    while waits_for := near.shake():
                        near.wait(waits_for, time.monotonic() + 10)
                    self._pass(near, tls.dial(("127.0.0.1", self._to), tls.AGENT, 10))

    def _pass(self, near: tls.TlsLink, far: tls.TlsLink) -> None:
        with far.connection:
            while True:
                select.select([near.connection, far.connection], [], [])
                for end, other in ((near, far), (far, near)):
                    with contextlib.suppress(BlockingIOError):
                        data = end.receive(1 << 16)
                        if not data:
                            return
                        other.send_all(data, 10)

    def close(self) -> None:
        self._listener.close()


def _key(launch: Any) -> None:
    (launch.folder / "job.key").touch(mode=0o600)
    (launch.folder / "job.key").write_text("0123456789abcdef" * 4)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _launcher(launch: Any, port: int, *words: str, **variables: str) -> Any:
    at = f"127.0.0.1:{port}"
    ours = ("--agents", "1", "--listen", at, "--key-file", "job.key", *words, "python", "rank.py")
    return launch.start(*ours, variables=variables)


def _agent(launch: Any, port: int) -> Any:
    words = ("agent", "--launcher", f"127.0.0.1:{port}", "--key-file", "job.key", "--slots", "2")
    return launch.start(*words, program=COMMAND)


def _refused_one(launch: Any, job: Any, wait_until: Any) -> str:
    """What a launcher says that still waits, after it has refused somebody."""
    wait_until(lambda: "refused a connection" in launch.said(job), what="the refusal")
    job.send_signal(signal.SIGINT)
    done = launch.end(job)
    assert done.code == 130, done.stderr
    assert done.stderr.count("refused a connection from 127.0.0.1:") == 1
    assert done.stdout == ""
    return str(done.stderr)


@pytest.fixture
def ports(launch: Any) -> Iterator[list[Any]]:
    """Whatever listens here is closed at the end."""
    made: list[Any] = []
    yield made
    for each in made:
        each.close()


def test_nobody_reads_along_and_no_connection_is_repeated(launch: Any, ports: list[Any], wait_until: Any) -> None:
    _key(launch)
    (launch.folder / "rank.py").write_text(SAYS)
    port = _free_port()
    relay = Relay(port)
    ports.append(relay)
    job = _launcher(launch, port, "--export", "MINE", MINE=TOKEN)
    agent = _agent(launch, relay.port)
    done = launch.end(job)
    assert done.code == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] {TOKEN} {rank}" for rank in range(2)]
    assert launch.end(agent).code == 0
    dialled = [said for said in relay.dialled if said]
    assert len(dialled) == 3, "the agent and two supervisors"
    assert len(relay.seen) > 4000
    for secret in (TOKEN, "rank.py", "RANK", str(launch.folder), "job.key"):
        assert secret.encode() not in relay.seen
    again = _launcher(launch, port, "--start-timeout", "60")
    wait_until(lambda: "waiting for agents" in launch.said(again), what="the launcher")
    for said in dialled:
        with socket.create_connection(("127.0.0.1", port), 10) as replay, contextlib.suppress(ConnectionError):
            replay.sendall(said)
            replay.settimeout(10)
            while replay.recv(1 << 16):
                pass
    _refused_one(launch, again, wait_until)


def test_somebody_in_the_middle_is_refused(launch: Any, ports: list[Any], wait_until: Any) -> None:
    """Both ends have the key, and the one between them passes the handshake on."""
    _key(launch)
    (launch.folder / "rank.py").write_text(SAYS)
    port = _free_port()
    job = _launcher(launch, port, "--start-timeout", "60", MINE=TOKEN)
    wait_until(lambda: "waiting for agents" in launch.said(job), what="the launcher")
    impostor = Impostor(port)
    ports.append(impostor)
    agent = launch.end(_agent(launch, impostor.port))
    assert agent.code == 2
    assert "was refused: it does not have this job's key" in agent.stderr
    assert "somebody in between shows another certificate" in agent.stderr
    assert "it left during the handshake" in _refused_one(launch, job, wait_until)


def test_other_key(launch: Any, wait_until: Any) -> None:
    _key(launch)
    (launch.folder / "rank.py").write_text(SAYS)
    port = _free_port()
    job = _launcher(launch, port, "--start-timeout", "60")
    (launch.folder / "other.key").touch(mode=0o600)
    (launch.folder / "other.key").write_text("f" * 64)
    words = ("agent", "--launcher", f"127.0.0.1:{port}", "--key-file", "other.key")
    agent = launch.end(launch.start(*words, program=COMMAND))
    assert agent.code == 2
    assert "it does not have this job's key. Check that the key file is the same on both hosts" in agent.stderr
    said = _refused_one(launch, job, wait_until)
    assert "it left during the handshake, as an agent does whose key file is another one" in said


def _lie(port: int, drawn: random.Random) -> None:
    """Garbage, garbage under TLS, and the handshake of another key."""
    kind = drawn.randrange(4)
    with contextlib.suppress(OSError, RefusedError, EOFError):
        if kind == 0:
            with socket.create_connection(("127.0.0.1", port), 10) as plain:
                plain.sendall(drawn.choice([drawn.randbytes(300), b"GET / HTTP/1.1\r\n\r\n", b"tfdist-1" * 20]))
                plain.settimeout(10)
                plain.recv(100)
            return
        link = tls.dial(("127.0.0.1", port), drawn.choice([tls.AGENT, tls.RANK]), 10)
        with link.connection:
            if kind == 1:
                link.send_all(drawn.randbytes(5000), 10)
            elif kind == 2:
                link.send_all(b"tfdist-1" + bytes(7) + b"\1" + drawn.randbytes(32 + 32), 10)
            else:
                introduction.prove(link, drawn.randbytes(32), 10)


def test_strangers_keep_nobody_out(launch: Any, wait_until: Any) -> None:
    """200 who say nothing and 200 who lie, before the agent comes and while the ranks run."""
    _key(launch)
    (launch.folder / "rank.py").write_text(WAITS)
    port, drawn = _free_port(), random.Random(5)
    job = _launcher(launch, port, "--start-timeout", "60")
    wait_until(lambda: "waiting for agents" in launch.said(job), what="the launcher")
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 10))
            _lie(port, drawn)
        agent = _agent(launch, port)
        wait_until(lambda: len(launch.files("up*")) == 2, what="the ranks")
        for _ in range(60):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 10))
            _lie(port, drawn)
        (launch.folder / "end").touch()
        done = launch.end(job)
    assert done.code == 0, done.stderr
    assert done.stderr.count("refused a connection") <= 2, "one before the ranks, one beside them"
    assert launch.end(agent).code == 0


def test_secrets_are_in_no_list_of_processes(launch: Any, wait_until: Any) -> None:
    """Neither the key of the file nor that of the job is on a command line, nor the first in any environment."""
    _key(launch)
    (launch.folder / "rank.py").write_text(WAITS)
    port = _free_port()
    job, agent = _launcher(launch, port, "--verbose", "--export", "MINE", MINE=TOKEN), _agent(launch, port)
    wait_until(lambda: len(launch.files("up*")) == 2, what="the ranks")
    key = read(str(launch.folder / "job.key"), "--key-file")
    inherited = [Path(f"/proc/{pid}/environ").read_bytes() for pid in launch.processes()]
    shown = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                shown.append((entry / "cmdline").read_bytes())
    assert len(inherited) >= 6, "launcher, agent, crew, two supervisors, two ranks"
    assert not any(key in text or TOKEN.encode() in text for text in shown)
    assert not any(key in text or b"TFDIST_RUN_KEY=" in text for text in inherited)
    (launch.folder / "end").touch()
    done = launch.end(job)
    assert done.code == 0, done.stderr
    assert key.decode() not in done.stdout + done.stderr + launch.end(agent).stderr
