"""The launcher's end of the connections to the agents of a job: what they say goes to a queue as events."""

from __future__ import annotations

import contextlib
import queue
import selectors
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfdist.launch.job.job import silence
from tfdist.launch.wire.record import Message, RefusedFrameError
from tfdist.system.network.tcp import is_unanswered, keep_alive

if TYPE_CHECKING:  # TLS takes 10 ms to import, and most jobs do not need it
    from tfdist.launch.wire.muster import Recruit

SEND_TIMEOUT_S = 5.0
# How an agent is lost whose process or host was killed; continues the name of the host.
LOST = "lost its agent: the process was killed, or the host is gone"
_JOIN_S = 2.0


@dataclass(frozen=True)
class AgentSaid:
    """An event: a message from the agent of a host."""

    host: str
    message: Message


@dataclass(frozen=True)
class AgentLost:
    """An event: the connection to the agent of a host has ended. `how` continues the name of the host."""

    host: str
    how: str


class Agents:
    """One thread that reads all agents' connections.

    Args:
        recruits: The agents, by the name of their host in this job.
        events: Where events go.
    """

    def __init__(self, recruits: Mapping[str, Recruit], events: queue.SimpleQueue[Any]) -> None:
        self._recruits, self._events = dict(recruits), events
        self._wake, self._waker = socket.socketpair()
        self._closing = False
        self._silence_limit_s = 0.0
        self._thread = threading.Thread(target=self._run, name="tfdistrun-agents", daemon=True)

    def start(self, silence_limit_s: float) -> None:
        """Starts reading. The kernel gives up on a host that has been gone for a little more than that."""
        self._silence_limit_s = silence_limit_s
        for recruit in self._recruits.values():
            with contextlib.suppress(OSError):  # it is gone already, which reading shows
                keep_alive(recruit.conversation.link.connection, silence_limit_s)
        self._thread.start()

    def send(self, host: str, kind: str, **fields: Any) -> None:
        """Sends to an agent; one that is gone shows as `AgentLost`, never as an exception."""
        with contextlib.suppress(OSError):
            self._recruits[host].conversation.send(SEND_TIMEOUT_S, kind, **fields)

    def close(self, status: int, reason: str) -> None:
        """Tells all agents that the job is over, and with which status; closes the connections."""
        self._closing = True
        with contextlib.suppress(OSError):
            self._waker.send(b"x")
        if self._thread.ident is not None:
            self._thread.join(_JOIN_S)
        for host, recruit in self._recruits.items():
            self.send(host, "over", status=status, reason=reason)
            recruit.conversation.link.close()
        for end in (self._wake, self._waker):
            end.close()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake, selectors.EVENT_READ)
            for host, recruit in self._recruits.items():
                selector.register(recruit.conversation.link.connection, selectors.EVENT_READ, host)
            while not self._closing:
                for key, _ in selector.select():
                    if key.data is not None and not self._read(key.data):
                        selector.unregister(key.fileobj)

    def _read(self, host: str) -> bool:
        """Whether the connection is still there."""
        try:
            for message in self._recruits[host].conversation.receive():
                self._events.put(AgentSaid(host, message))
        except RefusedFrameError as refusal:
            self._events.put(AgentLost(host, f"sent an invalid message: {refusal}"))
        except (EOFError, OSError):  # under TLS both mean a host that does not answer, too
            silent = is_unanswered(self._recruits[host].conversation.link.connection, self._silence_limit_s)
            self._events.put(AgentLost(host, silence(self._silence_limit_s) if silent else LOST))
        else:
            return True
        return False
