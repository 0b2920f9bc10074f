"""The actor: a place of a Ray cluster where an agent runs, and below it a rank. It ends with its actor.

The driver sends this class to the nodes by name, so they need tfdist, at the same version.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
from collections.abc import Mapping
from typing import Any

from tfdist.launch.function.embedded import EmbeddedAgent, Offer
from tfdist.ray import channel, loop

_LOOK_S = 0.1
_END_S = 10.0


class Place:
    """One slot. Its methods are called one after the other, in the thread that lives as long as the actor."""

    def __init__(self) -> None:
        self._listener = channel.listen()
        self._agent: EmbeddedAgent | None = None
        self._logs: Any = None
        self._rank: socket.socket | None = None
        self._frames: queue.SimpleQueue[tuple[bytes, bytes] | None] = queue.SimpleQueue()
        threading.Thread(target=self._accept, name="tfdist-ray", daemon=True).start()

    def node(self) -> tuple[str, str]:
        """The id of the node, and its name."""
        import ray

        return ray.get_runtime_context().get_node_id(), os.uname().nodename

    def begin(self, offer: Offer, number: int, variables: Mapping[str, str], logs: Any) -> None:
        """Starts an agent, which starts a rank.

        Args:
            offer: From the driver.
            number: Of the actor.
            variables: For the rank's environment.
            logs: A queue for what the rank logs; None if nobody wants it.
        """
        self._logs = logs
        variables = {**variables, loop.VARIABLE: channel.name_of(self._listener)}
        self._agent = EmbeddedAgent(offer, f"actor-{number}", variables)

    def rank(self, seconds: float) -> tuple[int | None, str]:
        """The number of the rank, when it is there; None and why, if it does not come in that time."""
        assert self._agent is not None
        for _ in range(int(seconds / _LOOK_S)):
            try:
                frame = self._frames.get(timeout=_LOOK_S)
            except queue.Empty:
                if self._agent.is_running():
                    continue
                return None, self._agent.said()
            if frame is not None:
                return int(frame[1]), ""
        return None, f"a rank did not start within {seconds:g} s"

    def call(self, data: bytes, logs: Any) -> bytes:
        """Has the rank call a function, and waits for its answer; empty if the rank has gone."""
        self._logs = logs
        if self._rank is None:
            return b""
        try:
            channel.send(self._rank, channel.CALL, data)
        except OSError:
            return b""
        frame = self._frames.get()
        return b"" if frame is None else frame[1]

    def serve(self, offer: Offer, number: int, variables: Mapping[str, str], logs: Any) -> str:
        """Runs an agent until an elastic job ends, and another one if it is killed; returns what it has said last."""
        while True:
            self.begin(offer, number, variables, logs)
            assert self._agent is not None
            if self._agent.wait() >= 0:
                return self._agent.said()

    def end(self) -> None:
        """Has the rank return, and waits until the agent has ended with the job."""
        if self._rank is not None:
            self._rank.shutdown(socket.SHUT_RDWR)
        if self._agent is not None:
            self._agent.wait()

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            if channel.is_own(connection):
                threading.Thread(target=self._listen, args=(connection,), name="tfdist-ray-rank", daemon=True).start()
            else:
                connection.close()

    def _listen(self, connection: socket.socket) -> None:
        is_rank = False
        for kind, data in channel.frames(connection):
            if kind == channel.LOG:
                if self._logs is not None:
                    self._logs.put(data)
                channel.send(connection, channel.ANSWER, b"")  # so that values come before what the rank returns
                continue
            if kind == channel.RANK:
                self._rank, is_rank = connection, True
            self._frames.put((kind, data))
        if is_rank:
            self._rank = None
            self._frames.put(None)
        connection.close()
