"""Tests of tfdist.launch.agent.agent: what it does before any rank runs. The rest is in tests/launch."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tfdist.errors import ConfigError, PeerLostError
from tfdist.launch.agent.agent import Post, serve
from tfdist.launch.wire.muster import Muster, dismiss
from tfdist.launch.wire.tls import Identity
from tfdist.protocol import mesh
from tfdist.system.network import endpoint

KEY = bytes(range(32))


class Launcher:
    """Musters agents in a thread and dismisses each with a status."""

    def __init__(self, status: int | None) -> None:
        listener = mesh.listen("127.0.0.1")
        self.address = ("127.0.0.1", listener.getsockname()[1])
        self.over = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(listener, status), daemon=True)
        self._thread.start()

    def _run(self, listener: socket.socket, status: int | None) -> None:
        muster = Muster(listener, Identity(), KEY, lambda _: "", lambda _: None)
        while not self.over.is_set():
            muster.step()
            for recruit in muster.recruits:
                if status is not None:
                    dismiss(recruit, status, f"told {recruit.host} {recruit.slots}")
                recruit.conversation.link.close()
                self.over.set()
        muster.close()
        listener.close()

    def stop(self) -> None:
        self.over.set()
        self._thread.join(5)


@contextlib.contextmanager
def _launcher(status: int | None = 0) -> Iterator[Launcher]:
    made = Launcher(status)
    yield made
    made.stop()


def _serve(address: endpoint.Address, key: bytes = KEY, wait_s: float = 5.0) -> tuple[int, str]:
    """In a process of its own: it handles signals, and adopts orphans."""
    program = (
        "import sys\nfrom tfdist.launch.agent.agent import Post, serve\n"
        f"sys.exit(serve(Post({address!r}, {key!r}, 'a', 2, {wait_s}), lambda text: print(text, file=sys.stderr)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr


@pytest.mark.parametrize("status", [0, 7])
def test_status_is_the_launchers(status: int) -> None:
    with _launcher(status) as launcher:
        assert _serve(launcher.address) == (status, "told a 2\n")


def test_launcher_that_vanishes() -> None:
    with _launcher(None) as launcher:
        code, said = _serve(launcher.address)
    assert (code, said) == (
        1,
        f"the launcher at {endpoint.text(launcher.address)} is gone; ending the ranks of this host\n",
    )


def test_other_key() -> None:
    with (
        _launcher() as launcher,
        pytest.raises(ConfigError, match=r"was refused: .*Check that the key file is the same"),
    ):
        serve(Post(launcher.address, bytes(32), "a", 2, 5.0), lambda _: None)


def test_nobody_is_there_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = probe.getsockname()
    with pytest.raises(
        PeerLostError, match=r"no launcher at 127.0.0.1:\d+ within 0.2 s: Connection refused. Check its"
    ):
        serve(Post(address, KEY, "a", 2, 0.2), lambda _: None)


def test_post_does_not_show_the_key() -> None:
    assert str(KEY) not in repr(Post(("h", 1), KEY, "a", 2))


def test_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    said: list[str] = []
    monkeypatch.setattr("tfdist.launch.agent.agent.tls.dial", interrupt)
    assert serve(Post(("h", 1), KEY, "a", 2), said.append) == 130
    assert said == ["interrupted before any rank was started"]
