"""Tests of tfdist.launch.wire.muster and introduction, over loopback: who is let in, and who is not."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tfdist.errors import ConfigError
from tfdist.launch.wire import introduction, muster, tls
from tfdist.launch.wire.introduction import Conversation
from tfdist.launch.wire.link import AGENT
from tfdist.launch.wire.muster import STRANGERS, Muster, Recruit
from tfdist.launch.wire.tls import Identity
from tfdist.protocol import mesh
from tfdist.protocol.handshake import RefusedError

KEY = bytes(range(32))
OFFER = {"host": "a", "slots": 2, "version": "1", "python": "3.11", "machine": ""}


class Post:
    """A muster, and the agents that dial it from threads."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.listener = mesh.listen("127.0.0.1")
        self.address = ("127.0.0.1", self.listener.getsockname()[1])
        self.identity = Identity()
        self.verdict: Any = ""
        self.muster = Muster(self.listener, self.identity, KEY, self._judge, self.warnings.append)
        self.dialled: list[Any] = []
        self._threads: list[threading.Thread] = []

    def _judge(self, recruit: Recruit) -> str:
        if isinstance(self.verdict, Exception):
            raise self.verdict
        return str(self.verdict)

    def dial(self, key: bytes = KEY, kind: str = "offer", **fields: Any) -> None:
        """Keeps the conversation, or the error."""

        def run() -> None:
            link = tls.dial(self.address, AGENT, 5)
            try:
                conversation = introduction.prove(link, key, 5)
                conversation.send(5, kind, **(fields or OFFER))
                self.dialled.append(conversation)
            except (OSError, RefusedError) as error:
                link.close()
                self.dialled.append(error)

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()

    def until(self, condition: Any) -> None:
        deadline = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < deadline
            self.muster.step()

    def told(self) -> list[Any]:
        """What the first agent was told."""
        self.until(lambda: self.dialled)
        conversation: Conversation = self.dialled[0]
        deadline = time.monotonic() + 5
        while not (messages := conversation.receive()):
            conversation.link.wait(1, deadline)
        return [(message.kind, message.fields) for message in messages]


@pytest.fixture
def post() -> Iterator[Post]:
    made = Post()
    yield made
    made.muster.close()
    made.listener.close()
    for each in made.dialled:
        if isinstance(each, Conversation):
            each.link.close()


def test_agent_with_the_key_is_there_until_it_leaves(post: Post) -> None:
    post.dial()
    post.until(lambda: post.muster.recruits)
    (recruit,) = post.muster.recruits
    assert (recruit.host, recruit.slots, recruit.version, recruit.python) == ("a", 2, "1", "3.11")
    assert recruit.address == "127.0.0.1"
    post.until(lambda: post.dialled)
    post.dialled[0].link.close()
    post.until(lambda: not post.muster.recruits)
    assert post.warnings == []


def test_other_key_is_refused_by_both(post: Post) -> None:
    post.dial(key=bytes(32))
    post.until(lambda: post.warnings)
    assert "it left during the handshake, as an agent does whose key file is another one" in post.warnings[0]
    assert post.warnings[0].startswith("refused a connection from 127.0.0.1:")
    post.until(lambda: post.dialled)
    assert isinstance(post.dialled[0], RefusedError)
    assert post.muster.recruits == []


def test_proof_for_another_certificate_is_refused(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of an agent whose connection ends at somebody in the middle."""
    monkeypatch.setattr(tls.TlsLink, "fingerprint", lambda _: bytes(32))
    post.dial()
    post.until(lambda: post.dialled)
    assert isinstance(post.dialled[0], RefusedError)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [("crew_ended", {"status": 0}), ("offer", OFFER | {"host": "a" * 5000}), ("offer", OFFER | {"slots": "2"})],
)
def test_agent_that_offers_nothing(post: Post, kind: str, fields: dict[str, Any]) -> None:
    post.dial(kind=kind, **fields)
    post.until(lambda: post.warnings)
    assert post.muster.recruits == []


def test_refused_agent_is_told_why(post: Post) -> None:
    post.verdict = "not here"
    post.dial()
    assert post.told() == [("over", {"status": 1, "reason": "not here"})]
    assert post.muster.recruits == []


def test_agent_of_another_version_ends_the_wait(post: Post) -> None:
    post.verdict = ConfigError("another version")
    post.dial()
    with pytest.raises(ConfigError, match="another version"):
        post.until(lambda: False)
    assert post.told() == [("over", {"status": 2, "reason": "another version"})]


def test_those_who_wait_are_told_that_there_is_no_job(post: Post) -> None:
    post.dial()
    post.until(lambda: post.muster.recruits)
    post.muster.close("no job", 3)
    deadline = time.monotonic() + 5
    while not post.dialled:
        assert time.monotonic() < deadline
    (message,) = post.dialled[0].receive() or post.dialled[0].receive()
    assert message.fields == {"status": 3, "reason": "no job"}


def test_silent_and_lying_strangers(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(muster, "STRANGER_TIMEOUT_S", 0.3)
    with contextlib.ExitStack() as stack:
        for number in range(STRANGERS + 20):
            stranger = stack.enter_context(socket.create_connection(post.address, 5))
            if number % 2:
                stranger.sendall(b"\x16\x03\x01\x00\x05hello")
            post.muster.step()
        post.dial()
        post.until(lambda: post.muster.recruits)
        post.until(lambda: len(post.muster._arrivals) == 1)  # the strangers' time is up
    assert len(post.warnings) == 1
