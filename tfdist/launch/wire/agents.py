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

from tfdist.launch.job.outcome import silence
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
        # Those that were lost, and those that have come since the start and are not yet read.
        self._lost: set[str] = set()
        self._new: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._silence_limit_s = 0.0
        self._thread = threading.Thread(target=self._run, name="tfdistrun-agents", daemon=True)

    def start(self, silence_limit_s: float) -> None:
        """Starts reading. The kernel gives up on a host that has been gone for a little more than that."""
        self._silence_limit_s = silence_limit_s
        for recruit in self._recruits.values():
            self._keep_alive(recruit)
        self._thread.start()

    def admit(self, recruits: Mapping[str, Recruit]) -> None:
        """Reads these too, after the start; each takes the place of a lost one with its name."""
        for name, recruit in recruits.items():
            self._keep_alive(recruit)
            if name in self._recruits:
                self._recruits[name].conversation.link.close()
            self._recruits[name] = recruit
            self._lost.discard(name)
            self._new.put(name)
        self._waker.send(b"x")

    def serves(self, host: str) -> bool:
        """Whether the agent of a host is connected. Thread-safe."""
        return host in self._recruits and host not in self._lost

    def _keep_alive(self, recruit: Recruit) -> None:
        with contextlib.suppress(OSError):  # it is gone already, which reading shows
            keep_alive(recruit.conversation.link.connection, self._silence_limit_s)

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
            for host in list(self._recruits):
                self._new.put(host)
            while not self._closing:
                while not self._new.empty():
                    host = self._new.get()
                    selector.register(self._recruits[host].conversation.link.connection, selectors.EVENT_READ, host)
                for key, _ in selector.select():
                    if key.data is None:
                        self._wake.recv(1)
                    elif not self._read(key.data):
                        selector.unregister(key.fileobj)

    def _read(self, host: str) -> bool:
        """Whether the connection is still there."""
        try:
            for message in self._recruits[host].conversation.receive():
                self._events.put(AgentSaid(host, message))
        except RefusedFrameError as refusal:
            self._lost.add(host)
            self._events.put(AgentLost(host, f"sent an invalid message: {refusal}"))
        except (EOFError, OSError):  # under TLS both mean a host that does not answer, too
            silent = is_unanswered(self._recruits[host].conversation.link.connection, self._silence_limit_s)
            self._lost.add(host)
            self._events.put(AgentLost(host, silence(self._silence_limit_s) if silent else LOST))
        else:
            return True
        return False
