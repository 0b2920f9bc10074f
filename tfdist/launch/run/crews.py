"""The crews of a job: that of this machine, and those that agents start on other hosts."""

from __future__ import annotations

import os
import queue
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tfdist.launch.start.direct import Direct
from tfdist.launch.supervisor.crew import Crew
from tfdist.launch.wire import ticket
from tfdist.launch.wire.agents import Agents
from tfdist.launch.wire.ticket import Ticket
from tfdist.system.rank import job_place

if TYPE_CHECKING:
    from tfdist.launch.run.force import Force
    from tfdist.launch.run.plan import Plan

# What an agent sets itself.
_OWN = (*ticket.VARIABLES, *job_place.OWN)


class Crews:
    """Orders the agents to start theirs, and knows which still run.

    Args:
        plan: The job; without agents, whoever starts its ranks is one crew.
        events: Where the agents' events go.
    """

    def __init__(self, plan: Plan, events: queue.SimpleQueue[Any]) -> None:
        self._order: dict[str, Any] = {}
        self._stays = plan.reserve is not None
        self._starter, self._names = plan.starter, plan.names_for_agents
        self._agents = None if plan.force is None else Agents(plan.force.recruits, events)
        self._machines = {} if plan.force is None else plan.force.machines
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
        variables = [f"{name}={environment[name]}" for name in self._names(environment) if name not in _OWN]
        self._agents.start(self._starter.host_timeout_s)
        self._order = {
            "elastic": self._stays,
            "job": issued.job,
            "key": issued.key.hex(),
            "variables": variables,
            "folder": os.getcwd(),
        }
        for name, (first, count) in self._elsewhere.items():
            self._send(name, Crew(first, count, self._starter.processes), 0, "")

    def admit(self, force: Force) -> None:
        """Agents of other hosts have come after the start."""
        assert self._agents is not None
        self._agents.admit(force.recruits)
        self._machines |= force.machines

    def machine_of(self, name: str) -> str:
        """What tells the machine of a host: its name, unless its agent has said more."""
        return self._machines.get(name, name)

    def serves(self, name: str) -> bool:
        """Whether the agent of a host is there. Thread-safe."""
        return self._agents is not None and self._agents.serves(name)

    def add(self, name: str, crew: Crew, issued: Ticket) -> None:
        """Orders an agent to start the supervisors of newcomers."""
        self.begin(name)
        self._send(name, crew, issued.port, issued.fingerprint.hex())

    def begin(self, name: str) -> None:
        """One more crew runs, which `end` will name."""
        self._running.add(name)

    def _send(self, name: str, crew: Crew, port: int, fingerprint: str) -> None:
        """An agent that has come to another port is told the job's, and its certificate."""
        assert self._agents is not None
        place = {"first": crew.first, "count": crew.count, "size": crew.size, "places": list(map(str, crew.places))}
        self._agents.send(name, "crew", **place, port=port, fingerprint=fingerprint, **self._order)

    def end(self, name: str) -> bool:
        """A crew has ended, or cannot be reached any more; empty for that of this machine. Whether others still run."""
        self._running.discard(name)
        return bool(self._running)

    def close(self, status: int, reason: str) -> None:
        """Ends the agents with the status of the job."""
        if self._agents is not None:
            self._agents.close(status, reason)
