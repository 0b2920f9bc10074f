"""Where the actors of an executor go: how many, with which resources, and together or apart."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tfdist.errors import BuildError, ConfigError, RankError
from tfdist.ray.place import Place

_CALLER = "tfdist.ray.RayExecutor"
_LOOK_S = 0.2
_QUIET_S = 2.0
# How long to look whether more have come than are needed.
_OTHERS_S = 3.0


@dataclass(frozen=True)
class Request:
    """What an executor asks of the cluster.

    Attributes:
        actors: How many, one for each rank.
        cpus: Of each, as the scheduler counts them.
        gpus: The same.
        a_node: How many of them must be on each node; 0 for any number.
        is_elastic: Whether they may come one after the other, and are replaced.
        takes_current: Whether they go into the placement group that this process is in, if any.
        timeout_s: How long to wait for room.
    """

    actors: int
    cpus: float
    gpus: float
    a_node: int
    is_elastic: bool
    takes_current: bool
    timeout_s: float

    def text(self, actors: int | None = None) -> str:
        """What it asks for, or as much for fewer actors."""
        actors = actors or self.actors
        what = f"{actors} actor{'s' * (actors != 1)} of {self.cpus:g} CPU"
        what += f" and {self.gpus:g} GPU" if self.gpus else ""
        return what + (f", {self.a_node} on each node" if self.a_node else "")


def engine() -> Any:
    """The module ray, which runs. Raises ConfigError, or BuildError if it is missing."""
    try:
        import ray
    except ImportError as error:
        raise BuildError(f"{_CALLER} needs ray: {error}. Install it: pip install 'tfdist[ray]'") from None
    if not ray.is_initialized():
        raise ConfigError(f"{_CALLER}: Ray does not run in this process. Call ray.init() first")
    if ray.util.client.ray.is_connected():
        raise ConfigError(
            f"{_CALLER}: this process is a client of a cluster (ray://), which the ranks cannot reach. Run it on a "
            "node of the cluster, for instance by `ray job submit`"
        )
    return ray


class Placement:
    """The actors of an executor, and the placement group that they are in. Use as a context manager.

    Args:
        request: What is asked for.
        ended: Set by another thread that wants no actors any more.

    Raises:
        ConfigError: If there is no room for them in time, or they cannot be placed so.
        RankError: If they are not wanted any more.
    """

    def __init__(self, request: Request, ended: threading.Event | None = None) -> None:
        self._ray, self._request = engine(), request
        self._ended = ended or threading.Event()
        self._group: Any = None
        self.actors: list[Any] = []

    def __enter__(self) -> Placement:
        try:
            self._place()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for actor in self.actors:
            self._ray.kill(actor, no_restart=True)
        self.actors = []
        if self._group is not None:
            self._ray.util.remove_placement_group(self._group)
            self._group = None

    def _place(self) -> None:
        request, util = self._request, self._ray.util
        current = util.get_current_placement_group() if request.takes_current else None
        if current is not None and request.a_node:
            raise ConfigError(
                f"{_CALLER}: num_hosts cannot be had in the placement group of this process, whose bundles say which "
                "nodes it has. Give num_workers instead, or use_current_placement_group=False"
            )
        if current is None and not request.is_elastic:
            self._group = util.placement_group(self._bundles(), strategy="STRICT_SPREAD" if request.a_node else "PACK")
            self._wait(lambda: self._group.wait(_LOOK_S))
        make = self._ray.remote(Place)
        # Without a strategy, Ray may take the placement group of this process.
        options: dict[str, Any] = {"num_cpus": request.cpus, "num_gpus": request.gpus, "scheduling_strategy": "DEFAULT"}
        if request.is_elastic:
            options |= {"max_restarts": -1, "max_task_retries": -1}
        for number in range(request.actors):
            if (group := current or self._group) is not None:
                bundle = number // (request.a_node or 1) if current is None else -1  # any
                options["scheduling_strategy"] = util.scheduling_strategies.PlacementGroupSchedulingStrategy(
                    group, bundle
                )
            self.actors.append(make.options(**options).remote())

    def nodes(self, least: int) -> list[tuple[str, str] | None]:
        """Of each actor, the id and the name of its node; None if it is not there. Waits until `least` are.

        Raises:
            ConfigError: If these are not there in time.
            RankError: If they are not wanted any more.
        """
        asked = [actor.node.remote() for actor in self.actors]
        self._wait(lambda: len(self._ray.wait(asked, num_returns=least, timeout=_LOOK_S)[0]) >= least, least)
        done, _ = self._ray.wait(asked, num_returns=len(asked), timeout=0.0 if least == len(asked) else _OTHERS_S)
        return [self._ray.get(one) if one in done else None for one in asked]

    def _wait(self, is_there: Callable[[], bool], least: int | None = None) -> None:
        """In parts, so that Ctrl-C ends it. Raises ConfigError, or RankError."""
        begin, told = time.monotonic(), False
        while not is_there():
            if self._ended.is_set():
                raise RankError(f"{_CALLER}: it was shut down while it waited for room")
            waited_s = time.monotonic() - begin
            what, limit_s = self._request.text(least), self._request.timeout_s
            if waited_s >= limit_s:
                raise ConfigError(
                    f"{_CALLER}: no room for {what} within {limit_s:g} s; the cluster has {self._there()}. Call "
                    "shutdown() of executors that are not needed, ask for less, or wait longer with "
                    "create_settings(placement_group_timeout_s=...)"
                )
            if waited_s >= _QUIET_S and not told:
                told = True
                there = self._there()
                sys.stderr.write(f"{_CALLER}: waiting up to {limit_s:g} s for {what}; the cluster has {there}\n")

    def _bundles(self) -> Sequence[dict[str, float]]:
        request = self._request
        times = request.a_node or 1
        bundle = {"CPU": request.cpus * times} | ({"GPU": request.gpus * times} if request.gpus else {})
        return [bundle] * (request.actors // times)

    def _there(self) -> str:
        there = self._ray.cluster_resources()
        free = self._ray.available_resources()
        have = ", ".join(f"{there.get(name, 0):g} {name} ({free.get(name, 0):g} free)" for name in ("CPU", "GPU"))
        nodes = sum(bool(node["Alive"]) for node in self._ray.nodes())
        return f"{have} on {nodes} node{'s' * (nodes != 1)}"
