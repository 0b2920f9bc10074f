"""Elastic jobs, one for each call: actors that die are replaced, and those that find room later join the others."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from tfdist.errors import RankError
from tfdist.ray.job import CALLER, Callback, LauncherThread, logs
from tfdist.ray.placement import Placement, Request, engine

_LOOK_S = 0.2
_END_S = 15.0
_AGENTS_S = 2.0
# For each call that runs: its launcher, its agents, and its actors.
_CLOSE_S = 2 * _END_S


class ElasticJob:
    """Keeps what each call needs.

    Args:
        request: For the actors.
        words: Options of tfdistrun.
        variables: For the ranks' environment.
        least: The fewest ranks.
        start: How many to start with; None for all that have come, at least `least`.
    """

    def __init__(
        self, request: Request, words: Sequence[str], variables: Mapping[str, str], least: int, start: int | None
    ) -> None:
        self._ray = engine()
        self._request, self._words, self._variables = request, words, variables
        self._least, self._start = least, start
        self._closed = threading.Event()
        # By the thread of a call that runs: set when it has ended.
        self._calls: dict[int, threading.Event] = {}

    def call(self, packed: bytes, name: str, callbacks: Sequence[Callback]) -> list[Any]:
        """Calls a function on the ranks of a job of its own; returns the results of those at its end, by rank."""
        ended = self._calls[threading.get_ident()] = threading.Event()
        try:
            launcher = self._run(packed, name, callbacks)
        finally:
            del self._calls[threading.get_ident()]
            ended.set()
        if launcher.results is None and self._closed.is_set():
            raise RankError(f"{CALLER}: {name} did not end, because it was shut down.") from launcher.error
        if launcher.error is not None:
            raise launcher.error
        assert launcher.results is not None, CALLER
        return launcher.results

    def _run(self, packed: bytes, name: str, callbacks: Sequence[Callback]) -> LauncherThread:
        with Placement(self._request, self._closed) as placement, logs(self._ray, callbacks) as (values, drain):
            there = [node for node in placement.nodes(self._start or self._least) if node is not None]
            count = self._start or len(there)
            launcher = LauncherThread(packed, name, count, self._words, self._variables)
            served: list[Any] = []
            try:
                served += [
                    actor.serve.remote(launcher.offer, number, {}, values)
                    for number, actor in enumerate(placement.actors)
                ]
                while not launcher.wait(_LOOK_S) and not self._closed.is_set():
                    drain()
                drain()
            finally:
                launcher.stop()
                launcher.wait(_END_S)
                self._ray.wait(served, num_returns=len(served), timeout=_AGENTS_S)  # those that had room
        return launcher

    def close(self) -> None:
        """Ends the calls of other threads."""
        self._closed.set()
        for thread, ended in list(self._calls.items()):
            if thread != threading.get_ident():
                ended.wait(_CLOSE_S)
