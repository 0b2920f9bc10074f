"""Tests of tfdist.launch.wire.muster.Lobby: agents that dial the port of a job that runs."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tfdist.launch.wire import introduction, tls
from tfdist.launch.wire.channel import Channel, Received
from tfdist.launch.wire.link import AGENT, RANK
from tfdist.launch.wire.muster import Lobby, Recruit
from tfdist.launch.wire.record import TO_LAUNCHER, Sealer
from tfdist.launch.wire.ticket import Ticket
from tfdist.launch.wire.tls import Identity
from tfdist.protocol import mesh
from tfdist.protocol.handshake import RefusedError

KEY = bytes(range(32))
WaitUntil = Callable[..., None]


class Job:
    """The port of a job that runs."""

    def __init__(self) -> None:
        listener = mesh.listen("127.0.0.1")
        self.identity = Identity()
        self.ticket = Ticket.issue(*listener.getsockname()[:2], self.identity.fingerprint)
        self.address = (self.ticket.host, self.ticket.port)
        self.events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.warnings: list[str] = []
        self.admitted: list[Recruit] = []
        self.verdict = ""
        self.lobby = Lobby(self.identity, KEY, lambda _: self.verdict, self.warnings.append, self.admitted.append)
        self.channel = Channel(listener, self.ticket, 1, self.events, lambda *_: None, self.warnings.append)
        self.channel.start(60, self.identity.accept, self.lobby.pass_on)

    def dial(self, key: bytes = KEY) -> introduction.Conversation:
        conversation = introduction.prove(tls.dial(self.address, AGENT, 5), key, 5)
        conversation.send(5, "offer", host="late", slots=2, version="1", python="3.11", machine="")
        return conversation


@pytest.fixture
def job() -> Iterator[Job]:
    made = Job()
    yield made
    made.channel.close()
    made.lobby.close()
    for recruit in made.admitted:
        recruit.conversation.link.close()


def test_agents_and_ranks_come_to_one_port(job: Job, wait_until: WaitUntil) -> None:
    agents = [job.dial() for _ in range(2)]
    rank = tls.dial(job.address, RANK, 5)
    rank.send_all(Sealer(job.ticket.job, job.ticket.key, TO_LAUNCHER, 0).seal("hello", host="h", pid=3), 5)
    wait_until(lambda: len(job.admitted) == 2, seconds=10, what="the agents")
    assert [(each.host, each.slots, each.address) for each in job.admitted] == [("late", 2, "127.0.0.1")] * 2
    event = job.events.get(timeout=10)
    assert isinstance(event, Received)
    assert (event.rank, event.message.kind) == (0, "hello")
    assert job.warnings == []
    job.admitted[0].conversation.send(5, "over", status=0, reason="")
    job.admitted[1].conversation.send(5, "over", status=3, reason="")
    assert sorted(received(agent)["status"] for agent in agents) == [0, 3]
    rank.close()


def received(agent: introduction.Conversation) -> Any:
    while not (messages := agent.receive()):
        agent.link.wait(1, time.monotonic() + 10)
    agent.link.close()
    return messages[0].fields


def test_another_key_is_refused(job: Job, wait_until: WaitUntil) -> None:
    with pytest.raises((RefusedError, OSError)):
        job.dial(bytes(32))
    wait_until(lambda: job.warnings, seconds=10, what="a warning")
    assert "it left during the handshake" in job.warnings[0]
    assert job.admitted == []


def test_one_that_is_judged_unfit_is_told(job: Job) -> None:
    job.verdict = "0 slots"
    assert received(job.dial()) == {"status": 1, "reason": "0 slots"}
    assert job.admitted == []
