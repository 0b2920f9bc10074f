"""The crews of a job: that of this machine, and those that agents start on other hosts."""

from __future__ import annotations

import os
import queue
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tfdist.launch.start.direct import Direct
from tfdist.launch.start.mpirun import forwarded
from tfdist.launch.wire import ticket
from tfdist.launch.wire.agents import Agents
from tfdist.launch.wire.ticket import Ticket
from tfdist.system.rank import job_place

if TYPE_CHECKING:
    from tfdist.launch.run.launcher import Plan

# What an agent sets itself.
_OWN = (*ticket.VARIABLES, *job_place.OWN)


class Crews:
    """Orders the agents to start theirs, and knows which still run.

    Args:
        plan: The job; without agents, whoever starts its ranks is one crew.
        events: Where the agents' events go.
    """

    def __init__(self, plan: Plan, events: queue.SimpleQueue[Any]) -> None:
        self._starter, self._force = plan.starter, plan.force
        self._agents = None if plan.force is None else Agents(plan.force.recruits, events)
        direct = plan.starter if isinstance(plan.starter, Direct) else None
        self._elsewhere = {} if direct is None or plan.force is None else direct.elsewhere
        self.here = direct is None or direct.here[1] > 0
        self._running = {*self._elsewhere, *([""] if self.here else [])}

    def start(self, issued: Ticket, environment: Mapping[str, str]) -> None:
        """Orders the agents to start the supervisors of their ranks.

        Args:
            issued: What supervisors need to contact the launcher.
            environment: That of the ranks on this machine; only a part of it travels.
        """
        if self._agents is None:
            return
        names = forwarded(environment, exports=self._starter.exports)
        variables = [f"{name}={environment[name]}" for name in names if name not in _OWN]
        self._agents.start(self._starter.host_timeout_s)
        for name, (first, count) in self._elsewhere.items():
            place = {"first": first, "count": count, "size": self._starter.processes}
            job = {"job": issued.job, "key": issued.key.hex(), "variables": variables, "folder": os.getcwd()}
            self._agents.send(name, "crew", **place, **job)

    def end(self, name: str) -> bool:
        """A crew has ended, or cannot be reached any more; empty for that of this machine. Whether others still run."""
        self._running.discard(name)
        return bool(self._running)

    def close(self, status: int, reason: str) -> None:
        """Ends the agents with the status of the job."""
        if self._agents is not None:
            self._agents.close(status, reason)
