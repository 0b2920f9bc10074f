"""What a job is to be, before anything of it is started, and who continues from what it leaves."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tfdist.launch.start.mpirun import forwarded, settings_in
from tfdist.launch.start.starter import Starter

if TYPE_CHECKING:
    from tfdist.launch.run.force import Force
    from tfdist.launch.run.reserve import Reserve


@dataclass(frozen=True)
class Plan:
    """Everything that is known before anything is started.

    `elsewhere` has the addresses of other machines, by name; `least` is the fewest ranks with which an elastic job
    continues, None for a job that ends at its first failure; `commits` names the folder of its commits on each host;
    `backup` is where the newest one is saved if the job ends before its training; `force` are the agents on other
    hosts, None if there are none; `join_timeout_s` is how long a rank may take to reach the others; `reserve` are the
    agents that may come while an elastic job runs, None if none do by themselves.
    """

    starter: Starter
    command: tuple[str, ...]
    environment: dict[str, str] = field(repr=False)
    start_timeout_s: float
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    verbose: bool = False
    data_workers: int = 0
    data_autoscale: tuple[int, int] | None = None
    least: int | None = None
    commits: str = ""
    backup: str = ""
    force: Force | None = None
    join_timeout_s: float = 600.0
    reserve: Reserve | None = None

    def names_for_agents(self, environment: Mapping[str, str]) -> list[str]:
        """Which variables of the ranks' environment agents are sent."""
        are_tasks = self.force is not None and self.force.are_tasks
        return (settings_in if are_tasks else forwarded)(environment, exports=self.starter.exports)


class Prospect(enum.Enum):
    """Who continues from the commits of a job that has ended."""

    NOBODY = "the training has ended"
    LATER = "another job may"
    PERHAPS = "new processes, if hosts come; else another job"
    SOON = "new processes"
