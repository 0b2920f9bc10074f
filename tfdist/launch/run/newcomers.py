"""The processes that are started while others train: from their start until they have joined them or never will."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tfdist.launch.host.host import Host
from tfdist.launch.job.job import Job, Phase
from tfdist.launch.job.membership import Change, Grown, Joinable
from tfdist.launch.run.crews import Crews
from tfdist.launch.run.here import SUPERVISOR, Here
from tfdist.launch.run.places import Places
from tfdist.launch.wire.channel import Channel
from tfdist.launch.wire.ticket import Ticket

if TYPE_CHECKING:
    from tfdist.launch.run.force import Force
    from tfdist.launch.run.plan import Plan


@dataclass(frozen=True)
class Growth:
    """An event: these processes are to join the ranks.

    Attributes:
        hosts: The hosts, with the number of newcomers.
        elsewhere: The addresses of those that are other machines.
        force: The agents of those that have had none; None if there are no such hosts.
    """

    hosts: tuple[Host, ...]
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    force: Force | None = None

    def dismiss(self) -> None:
        """Nobody joins any more."""
        if self.force is not None:
            self.force.dismiss(1, "the launcher: its job has ended before this host could join it")


class Newcomers:
    """Those of one launcher. Use from its thread.

    Args:
        plan: The job.
        ticket: What supervisors need to contact the launcher.
        channel: The connections to the supervisors.
        crews: The crews of the job.
        here: What runs on this machine.
        tell: Called with what the generations must know.
    """

    def __init__(
        self, plan: Plan, ticket: Ticket, channel: Channel, crews: Crews, here: Here, tell: Callable[[Change], None]
    ) -> None:
        self._plan, self._ticket, self._channel, self._crews, self._here = plan, ticket, channel, crews, here
        self._tell = tell
        self.places = Places(plan.starter)
        # The ranks that others may join, those that they can join no more, and what was told about that.
        self._open: set[int] = set()
        self._closed: set[int] = set()
        self._told: bool | None = None
        # Those of the last growth, those of them that others are to blame for, and how long they may take to arrive.
        self._last: tuple[int, ...] = ()
        self._blameless: set[int] = set()

    def start(self, job: Job, growth: Growth, environment: Mapping[str, str]) -> None:
        """Starts them.

        Args:
            job: The job.
            growth: Who they are.
            environment: That of the ranks on this machine.
        """
        if growth.force is not None:
            self._crews.admit(growth.force)
        crews = list(self.places.add(growth.hosts, growth.elsewhere, job.running))
        names = [name for name, crew in crews for _ in range(crew.count)]
        until = time.monotonic() + self._plan.start_timeout_s
        self._last, self._blameless = job.grow(names, growth.elsewhere, until), set()
        self._channel.grow(len(names))
        for name, crew in crews:
            if self.places.is_served(name):
                self._crews.add(name, crew, self._ticket)
                continue
            key = f"ranks from {crew.first} on"
            self._crews.begin(key)
            self._here.start([*SUPERVISOR, *crew.words()], environment, key)

    def start_rank(self, job: Job, rank: int) -> Collection[int]:
        """A rank has started. When all that are to join have, they get the time that ranks get to reach each other.

        Returns those that will not join, here and below.
        """
        job.start(rank)
        if job.coming and job.coming_until is not None and job.has_started(job.coming) and not job.is_complete:
            job.coming_until = time.monotonic() + self._plan.join_timeout_s
        return ()

    def open(self, job: Job, rank: int) -> Collection[int]:
        """Others may join a rank's training at a commit."""
        self._open.add(rank)
        return self._look(job)

    def close(self, job: Job, rank: int) -> Collection[int]:
        """Others can join a rank no more, or never could: its training is over, or it is about to end alone."""
        self._open.discard(rank)
        self._closed.add(rank)
        return self._look(job)

    def forget(self, job: Job, rank: int) -> Collection[int]:
        """The others continue without a rank."""
        self._open.discard(rank)
        self._closed.discard(rank)
        return self._look(job)

    def shut(self, job: Job) -> Collection[int]:
        """All ranks are about to end."""
        self._closed.update(job.running)
        return self._look(job)

    def _look(self, job: Job) -> Collection[int]:
        """Reports whether others can join. When they cannot, those that were to are not to blame."""
        running = set(job.running)
        if running <= self._closed:
            now = False
        elif self._open >= running:
            now = True
        else:
            return ()
        if now != self._told:
            self._told = now
            self._tell(Joinable(yes=now))
        if now:
            return ()
        self._blameless = set(job.coming)
        return sorted(job.coming)

    def dismiss(self, job: Job, hosts: tuple[Host, ...]) -> None:
        """Asks the last ranks on these hosts, so many on each, to leave."""
        for each in hosts:
            here = [rank for rank in job.running if self.places.hosts[rank] == each.name and rank not in job.dismissed]
            for rank in here[-each.slots :]:
                job.dismiss(rank)
                self._channel.send(rank, "retire")

    def ask_to_meet(self, job: Job, after: int) -> None:
        """Asks the ranks to meet those that wait for them, at a commit after that list."""
        for rank in job.running:
            self._channel.send(rank, "meet", after=after)

    def settle(self, job: Job) -> None:
        """Reports when none is coming any more."""
        if not self._last or job.coming or job.phase != Phase.RUNNING:
            return
        last, self._last = self._last, ()
        joined = Counter(self.places.hosts[rank] for rank in last if rank not in job.strayed)
        failed = tuple(self.places.hosts[rank] for rank in last if rank in job.strayed - self._blameless)
        self._tell(Grown(tuple(Host(name, count) for name, count in joined.items()), failed))
