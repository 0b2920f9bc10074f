"""Tests of tfdist.launch.wire.agents."""

from __future__ import annotations

import queue
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tfdist.launch.wire import agents
from tfdist.launch.wire.agents import LOST, AgentLost, Agents, AgentSaid
from tfdist.launch.wire.introduction import Conversation, acceptor
from tfdist.launch.wire.link import Link
from tfdist.launch.wire.muster import Recruit
from tfdist.launch.wire.record import FROM_AGENT, TO_AGENT
from tfdist.protocol.handshake import Dialer, derived

KEY = bytes(range(32))


class Pair:
    """The agents of one host, and the agent's end of its conversation."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            dialled = socket.create_connection(listener.getsockname())
            accepted = listener.accept()[0]
        ours, theirs = acceptor(KEY, b"f"), Dialer(derived(KEY, "agents"), b"agentf", 1, 0)
        proof = theirs.feed(ours.feed(theirs.unsent))
        theirs.feed(ours.feed(proof))
        assert ours.done and theirs.done
        self.far = Conversation(Link(dialled), theirs, TO_AGENT)
        self.events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        recruit = Recruit(Conversation(Link(accepted), ours, FROM_AGENT), "127.0.0.1", "a", 1, "1", "3")
        self.agents = Agents({"a": recruit}, self.events)
        self.agents.start(5)


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.agents.close(0, "")
    made.far.link.close()


def test_both_say_something(pair: Pair) -> None:
    pair.far.send(5, "crew_ended", status=3)
    event = pair.events.get(timeout=5)
    assert isinstance(event, AgentSaid)
    assert (event.host, event.message.kind, event.message.fields) == ("a", "crew_ended", {"status": 3})
    pair.agents.close(7, "why")
    (message,) = pair.far.receive()
    assert (message.kind, message.fields) == ("over", {"status": 7, "reason": "why"})


def test_agent_that_is_gone(pair: Pair) -> None:
    pair.far.link.close()
    assert pair.events.get(timeout=5) == AgentLost("a", LOST)
    pair.agents.send("a", "over", status=0, reason="")


def test_host_that_does_not_answer(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel has given up on it."""
    asked: list[float] = []
    monkeypatch.setattr(agents, "is_unanswered", lambda _, for_s: not asked.append(for_s))  # type: ignore[func-returns-value]
    pair.far.link.close()
    assert pair.events.get(timeout=5) == AgentLost("a", "has not answered for 5 s (TFDIST_HOST_TIMEOUT)")
    assert asked == [5]


def test_agent_that_says_what_it_may_not(pair: Pair) -> None:
    pair.far.link.send_all(b"\0\0\0\1" + bytes(60), 5)
    event = pair.events.get(timeout=5)
    assert isinstance(event, AgentLost)
    assert event.how.startswith("sent an invalid message: not authenticated")
