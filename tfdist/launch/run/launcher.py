"""Runs one job: mpirun, the channel to the supervisors, signals, and the shutdown. `job` decides what to do when."""

from __future__ import annotations

import os
import queue
import shlex
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tfdist.launch.host import host, probe
from tfdist.launch.job.job import Action, Do, Job, Phase
from tfdist.launch.job.membership import Change, Survived
from tfdist.launch.job.outcome import Outcome
from tfdist.launch.job.summary import joined, kept, name_of, render, report, strayed, survival
from tfdist.launch.run.console import READER_S, Console
from tfdist.launch.run.crews import Crews
from tfdist.launch.run.data_cluster import START_TIMEOUT_S, DataCluster
from tfdist.launch.run.here import SUPERVISOR, Here, StarterEnded, StarterSaid
from tfdist.launch.run.listener import towards
from tfdist.launch.run.newcomers import Growth, Newcomers
from tfdist.launch.run.plan import Plan, Prospect
from tfdist.launch.start import job_folder, place
from tfdist.launch.wire.agents import AgentLost, AgentSaid
from tfdist.launch.wire.call import Call
from tfdist.launch.wire.channel import Broken, Channel, Lost, Received
from tfdist.launch.wire.link import Link
from tfdist.launch.wire.ticket import Ticket
from tfdist.protocol import member
from tfdist.system.process import adopt_orphans, caught, end_descendants

_END_PATIENCE_S = 0.6
# How long to wait for a reader that reads nothing, if the ranks are already killed.
_LAST_READER_S = 0.5
_STARTER_LINES = 200
# Messages that are passed on to the job unchanged.
_NOTES = {"joined": Job.join, "parted": Job.part, "committed": Job.commit}
_OF_NEWCOMERS = {"started": Newcomers.start_rank, "open": Newcomers.open, "closed": Newcomers.close}
_EVENTS = {"left": Job.leave, "retired": Job.retire, "failing": Job.hear_of_failure}
# After a rank has waited for too long: the others that wait learn of it, and say so.
_HANG_S = 0.5
# Signals that ask the job to end.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class _DataServiceSaid:
    fields: dict[str, Any]


@dataclass(frozen=True)
class _Interrupted:
    signum: int


@dataclass(frozen=True)
class _Leave:
    pass


@dataclass(frozen=True)
class _Retire:
    hosts: tuple[host.Host, ...]


class Launcher:
    """Runs a plan. Use once.

    Args:
        plan: What to start, and where.
        console: Where the ranks' output goes.
        call: The function to send to the ranks, and its results; None for an ordinary command.
        prospect: Returns who continues from the commits of a job that ended this way.
        on_change: Called with what has changed among the ranks that continue.
    """

    def __init__(
        self,
        plan: Plan,
        console: Console,
        call: Call | None = None,
        prospect: Callable[[Job], Prospect] = lambda _: Prospect.NOBODY,
        on_change: Callable[[Change], None] = lambda _: None,
    ) -> None:
        self._plan, self._console, self._call = plan, console, call
        self._prospect, self._on_change = prospect, on_change
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        force = plan.force
        listener = towards(plan.starter) if force is None else force.listener
        fingerprint = b"" if force is None else force.identity.fingerprint
        address, port = listener.getsockname()[:2]
        self._ticket = Ticket.issue(address, port, fingerprint)
        size = plan.starter.processes
        keep = call.keep if call is not None else None
        self._channel = Channel(listener, self._ticket, size, self._events, console.write, self._say, keep)
        self._job = self._new_job()
        self._crews = Crews(plan, self._events)
        self._data_cluster: DataCluster | None = None
        self._data_service: dict[str, str] = {}
        self._not_started = ""
        self._leaving = False
        # After `run`: the hosts whose commits were removed.
        self.forgetful: set[str] = set()
        self._unreachable: dict[str, str] = {}
        self._here = Here(self._events)
        self._newcomers = Newcomers(plan, self._ticket, self._channel, self._crews, self._here, on_change)
        self._environment: dict[str, str] = {}
        # Guards the latter: whether nobody can join any more.
        self._growing = threading.Lock()
        self._is_over = False
        self._unheard: list[int] = []
        self._starter_status = 0
        self._held: list[str] = []
        # Where the ranks of a job without MPI listen for each other, after the last list of ranks; and that list.
        self._listening: dict[int, str] = {}
        self._epoch = 0
        self._members: list[int] = []
        # When to end the ranks that hang.
        self._patience_until: float | None = None
        # Whether they failed, for the ranks that have exited, even if some of their output is not yet written.
        self._ended: dict[int, bool] = {}
        console.watch(self._channel.grant)
        console.calm()

    def run(self) -> int:
        """Returns the job's exit status; leaves none of its processes on this machine. `explanation` says why."""
        adopt_orphans()
        with caught(SIGNALS, self.interrupt):
            try:
                if self._plan.data_workers:
                    status = self._start_data_service()
                    if status:
                        return status
                    self._job = self._new_job()  # its clock begins now
                self._start()
                while self._job.phase != Phase.OVER:
                    self._act(self._next())
                    self._hurry()
            finally:
                self._end()
            self._ask_hosts()
        return self._job.status

    def leave(self) -> None:
        """Asks all ranks to leave at their next commit. Thread-safe."""
        self._events.put(_Leave())

    def retire(self, hosts: tuple[host.Host, ...]) -> None:
        """Asks so many ranks on these hosts to leave at a commit, and the others to continue. Thread-safe."""
        self._events.put(_Retire(hosts))

    def grow(self, growth: Growth) -> None:
        """Has others join the ranks. Thread-safe."""
        with self._growing:
            if not self._is_over:
                self._events.put(growth)
                return
        growth.dismiss()

    @property
    def is_local(self) -> bool:
        """Whether no other machine can join, because only this one reaches the launcher and the ranks."""
        return self._plan.starter.local

    def serves(self, name: str) -> bool:
        """Whether the agent of a host is there. Thread-safe."""
        return self._crews.serves(name)

    def interrupt(self, signum: int) -> None:
        """Ends the job as that signal does. Any thread or signal handler may call it, even before `run`."""
        self._events.put(_Interrupted(signum))

    @property
    def unheard(self) -> list[int]:
        """After `run`: the signals that arrived too late to be handled; each is returned once."""
        self._drain()
        found, self._unheard = self._unheard, []
        return found

    @property
    def job(self) -> Job:
        """The state of the job."""
        return self._job

    @property
    def unreachable(self) -> tuple[str, ...]:
        """After `run`: the hosts that ssh could not reach."""
        return tuple(self._unreachable)

    @property
    def explanation(self) -> str:
        """After `run`: why the job failed, or on which ranks it succeeded; empty if on all."""
        return self._not_started or render(self._job, self._unreachable, self._console.place)

    @property
    def heard(self) -> list[str]:
        """After `run`: the output of mpirun, if it may matter."""
        # If ranks left no record, mpirun or their supervisor may have printed the reason; if hosts are lost, mpirun
        # only repeats that.
        silent = self._plan.verbose or self._job.complete or self._job.lost_hosts or not self.explanation
        said = [] if self._plan.force is None else self._plan.force.said()
        return [] if silent else [*(f"[{self._plan.starter.name}] {line}" for line in self._held), *said]

    def report(self) -> dict[str, Any]:
        """After `run`: what `tfdist.run` needs to know about the job, in types that JSON supports."""
        return report(self._job, self._members, "\n".join([*self.heard, self.explanation]))

    def _new_job(self) -> Job:
        plan, starter, now = self._plan, self._plan.starter, time.monotonic()
        placement = host.placement(starter.hosts)
        by_ssh = starter.own_daemons
        return Job(placement, plan.start_timeout_s, now, plan.elsewhere, plan.least, starter.name, by_ssh)

    def _ask_hosts(self) -> None:
        """Checks hosts by ssh: those that may be lost, and those from which no rank has reported."""
        # A cluster manager monitors its own hosts, and a user who interrupts a job should not wait for this.
        if not self._plan.starter.own_daemons or self._job.interrupt is not None:
            return
        words = self._plan.starter.ssh.words()
        if doubtful := self._job.doubtful:
            silent = probe.unreachable(doubtful, words)
            self._job.spare([name for name in doubtful if name not in silent])
        # mpirun starts no rank until all of its daemons run, so the ranks do not show which host is missing.
        if self._job.status != 0 and self._job.first_to_fail is None:
            self._unreachable = probe.unreachable(self._job.unreached, words)

    def _say(self, text: str) -> None:
        self._console.say(f"tfdistrun: {text}")

    def _start_data_service(self) -> int:
        """Waits until the data service is ready; returns 0, or the exit status of a job that cannot start."""
        self._data_cluster = DataCluster(
            self._plan.data_workers,
            self._plan.data_autoscale,
            self._plan.environment,
            lambda fields: self._events.put(_DataServiceSaid(fields)),
            self._console.quote,
        )
        while True:
            # The manager reports timeouts itself; if it does not answer at all, give up on it.
            try:
                event = self._events.get(timeout=2 * START_TIMEOUT_S)
            except queue.Empty:
                event = _DataServiceSaid({"error": f"its manager has not answered within {2 * START_TIMEOUT_S:g} s"})
            if isinstance(event, _Interrupted):
                name = signal.Signals(event.signum).name
                self._not_started = f"interrupted by {name} before the data service was ready; no rank has started"
                return 128 + event.signum
            if isinstance(event, _DataServiceSaid):
                if "ready" in event.fields:
                    self._data_service = {"TFDIST_DATA_SERVICE": event.fields["ready"]}
                    return 0
                self._not_started = f"the data service could not start, so no rank was started: {event.fields['error']}"
                return 1

    def _start(self) -> None:
        plan = self._plan
        environment = plan.environment | self._ticket.variables() | self._data_service | self._first_rank()
        self._environment = environment
        if plan.backup:
            environment[member.BACKUP_VARIABLE] = plan.backup
        self._crews.start(self._ticket, environment | plan.starter.settings(environment, root=False))
        if self._crews.here:
            self._start_here(environment)
        secure = Link if plan.force is None else plan.force.identity.accept
        if plan.reserve is not None:
            plan.reserve.follow(self.serves)
        pass_on = None if plan.reserve is None else plan.reserve.pass_on
        self._channel.start(plan.starter.host_timeout_s, secure, pass_on)

    def _start_here(self, environment: dict[str, str]) -> None:
        """Starts the program that starts the ranks, or the supervisors of this machine."""
        plan = self._plan
        words, settings = plan.starter.call(SUPERVISOR, environment, root=os.geteuid() == 0)
        environment |= settings
        command = self._here.start(words, environment)
        if plan.verbose:
            set_for_it = "".join(f"{name}={shlex.quote(value)} " for name, value in settings.items())
            ranks = f"\n  with ranks running {shlex.join(plan.command)}"
            self._console.quote(f"tfdistrun: running {set_for_it}{shlex.join(command)}{ranks}")

    def _first_rank(self) -> dict[str, str]:
        """Where other frameworks than ours may let their ranks meet: a port that is free on this machine."""
        first = self._plan.starter.hosts[0].name
        address = self._plan.elsewhere.get(first, self._ticket.host)
        with socket.socket(host.family(self._ticket.host), socket.SOCK_STREAM) as probe:
            probe.bind((self._ticket.host, 0))
            port = probe.getsockname()[1]
        return {place.ADDRESS_VARIABLE: address, place.PORT_VARIABLE: str(port)}

    def _next(self) -> list[Action]:
        deadline = min((at for at in (self._job.deadline, self._patience_until) if at is not None), default=None)
        try:
            event = self._events.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            now = time.monotonic()
            if self._patience_until is not None and now >= self._patience_until:
                self._end_hanging()
            return self._job.tick(now)
        return self._on(event)

    def _on(self, event: Any) -> list[Action]:
        now = time.monotonic()
        if isinstance(event, Received):
            return self._on_message(event, now)
        if isinstance(event, Lost):
            return self._on_loss(event, now)
        if isinstance(event, _Interrupted):
            return self._job.interrupted(event.signum, now)
        if isinstance(event, StarterEnded):
            return self._end_crew(event.crew, event.status, now)
        if isinstance(event, (AgentSaid, AgentLost)):
            return self._on_agent(event, now)
        if isinstance(event, _Leave):
            self._leaving = True
            for rank in self._job.members:
                self._channel.send(rank, "leave")
            return self._job.stray(self._newcomers.shut(self._job))
        if isinstance(event, Growth):
            self._on_growth(event)
        elif isinstance(event, _Retire):
            self._newcomers.dismiss(self._job, event.hosts)
        elif isinstance(event, StarterSaid):
            self._on_starter_line(event.line)
        elif isinstance(event, _DataServiceSaid):
            self._say(f"data service: {event.fields.get('error') or 'lost ' + event.fields['failed']}")
        elif isinstance(event, Broken):
            raise event.error
        return []

    def _on_loss(self, event: Lost, now: float) -> list[Action]:
        at = self._job.hosts[event.rank]
        actions = self._job.finish(Outcome(event.rank, at, lost=event.how), now)
        # Nobody on a frozen host will say that its supervisors have ended.
        if self._plan.force is not None and at in [lost.name for lost in self._job.lost_hosts]:
            actions += self._end_crew(at, 1, now)
        return actions

    def _end_crew(self, name: str, status: int, now: float) -> list[Action]:
        """The supervisors of a host, or the program that started all, have ended; empty for this machine."""
        self._starter_status = max(self._starter_status, status)
        return [] if self._crews.end(name) else self._job.end_starter(self._starter_status, now)

    def _on_agent(self, event: AgentSaid | AgentLost, now: float) -> list[Action]:
        name = event.host
        if isinstance(event, AgentLost):
            return self._job.lose(name, event.how, now) + self._end_crew(name, 1, now)
        kind, fields = event.message.kind, event.message.fields
        if kind == "remark":
            self._say(f"note: host {name}: {fields['text']}")
        elif kind == "withdrawn" and self._plan.reserve is not None:
            self._plan.reserve.withdraw(name)  # its ranks are asked to leave when its host is missing from the list
        elif kind == "withdrawn":
            return self._job.lose(name, f"left: its agent was ended by {name_of(fields['signal'])}", now)
        elif kind == "crew_ended":
            how = f"lost its ranks: their supervisors ended with status {fields['status']}"
            return self._job.lose(name, how, now) + self._end_crew(name, fields["status"], now)
        return []

    def _on_hello(self, rank: int, node: str, address: str) -> None:
        # Agents may call their hosts the same, but who starts which ranks is known.
        at = self._job.hosts[rank]
        if self._plan.force is None:
            at = host.known_as(node, address, self._plan.elsewhere)
        if not self._job.connect(rank, at):
            self._channel.send(rank, "release", forget=False, backup="")
            return
        if self._call is not None:
            self._channel.send(rank, "call", **self._call.offer(rank))
        plan = self._plan
        self._channel.send(
            rank,
            "run",
            command=list(plan.command),
            silence_limit=plan.starter.host_timeout_s,
            elastic=plan.least is not None,
            commits=plan.commits if plan.reserve is None else self._newcomers.places.folder(rank, plan.commits),
            window=self._channel.window,
            redrawn=self._console.redrawn,
        )
        if self._leaving:
            self._channel.send(rank, "leave")

    def _on_growth(self, growth: Growth) -> None:
        if self._job.phase != Phase.RUNNING or self._leaving:
            growth.dismiss()
            return
        self._newcomers.start(self._job, growth, self._environment)

    def _introduce(self) -> None:
        """Announces the ranks to each other when the last of them listens: at first all, later those that are left.

        Those that wait to join them come after them.
        """
        job, placement = self._job, [*map(self._crews.machine_of, self._newcomers.places.hosts)]
        ranks = list(job.running if self._epoch else job.members)
        if job.phase != Phase.RUNNING or not ranks or not self._listening.keys() >= set(ranks):
            return
        joining = job.admit() if job.is_complete else ()
        ranks += joining
        if joining:
            self._say(joined(job, joining))
        self._epoch += 1
        self._patience_until = None
        # As the hosts call themselves, at the first rank of each.
        names = {name: job.hosts[placement.index(name)] for name in dict.fromkeys(placement)}
        places = list(names)
        members = [f"{rank} {places.index(placement[rank])} {self._listening[rank]}" for rank in ranks]
        self._members = ranks
        for rank in ranks:
            del self._listening[rank]
            self._channel.send(rank, "epoch", number=self._epoch, members=members, hosts=list(names.values()))
        self._newcomers.settle(job)

    def _end_hanging(self) -> None:
        """Ends the ranks for which the others have waited for too long, so that these can continue."""
        self._patience_until = None
        for rank in set(self._job.running) - self._listening.keys():
            self._job.hang(rank)
            self._channel.send(rank, "signal", number=signal.SIGKILL)

    def _on_message(self, event: Received, now: float) -> list[Action]:
        rank, fields = event.rank, event.message.fields
        if event.message.kind == "hello":
            self._on_hello(rank, fields["host"], event.address)
        elif event.message.kind in _OF_NEWCOMERS:
            return self._job.stray(_OF_NEWCOMERS[event.message.kind](self._newcomers, self._job, rank))
        elif event.message.kind == "listening":
            self._on_listening(rank, fields)
        elif event.message.kind in _NOTES:
            _NOTES[event.message.kind](self._job, rank)
        elif event.message.kind == "fetch" and self._call is not None:
            self._channel.send(rank, "part", data=self._call.part(fields["offset"]))
        elif event.message.kind == "kept":
            if fields["names"] or fields["error"]:
                self._say(kept(fields["names"], self._plan.backup, fields["error"]))
        elif event.message.kind == "ended":
            return self._on_end(rank, fields["failed"], now)
        elif event.message.kind == "stalled":
            return self._on_stall(rank, now)
        elif event.message.kind in _EVENTS:
            return _EVENTS[event.message.kind](self._job, rank, now)
        elif event.message.kind == "finished":
            return self._on_record(rank, fields, now)
        return []

    def _on_listening(self, rank: int, fields: dict[str, Any]) -> None:
        if rank in self._job.coming and not fields["epoch"]:
            self._listening[rank] = fields["address"]
            self._job.arrive(rank)
            self._call_meeting()
        elif fields["epoch"] == self._epoch:
            self._listening[rank] = fields["address"]
        self._introduce()

    def _call_meeting(self) -> None:
        if self._job.is_complete:
            self._newcomers.ask_to_meet(self._job, self._epoch)

    def _on_stall(self, rank: int, now: float) -> list[Action]:
        if self._job.least is None or self._job.phase != Phase.RUNNING:
            return self._job.fail(rank, now)
        self._patience_until = now + _HANG_S
        return []

    def _on_end(self, rank: int, failed: bool, now: float) -> list[Action]:
        self._ended[rank] = failed
        # An elastic job needs the record to continue without the rank.
        return self._job.fail(rank, now) if failed and self._plan.least is None else []

    def _on_record(self, rank: int, fields: dict[str, Any], now: float) -> list[Action]:
        at, retired = self._job.hosts[rank], rank in self._job.retired
        code, signum, tail = fields["code"], fields["signal"], tuple(fields["tail"])
        return self._job.finish(Outcome(rank, at, code, signum, fields["told"], tail, retired=retired), now)

    def _on_starter_line(self, line: str) -> None:
        self._job.starter_spoke = True
        # Once ranks have exited, its long texts about "improper" exits only hide the cause, which the records show.
        if self._plan.verbose:
            self._console.quote(f"[{self._plan.starter.name}] {line}")
        elif len(self._held) < _STARTER_LINES:
            self._held.append(line)

    def _hurry(self) -> None:
        """Once the job or one of its ranks has ended, stop waiting for a reader that does not read."""
        phase = self._job.phase
        running = set(self._job.running)
        ended = running & self._ended.keys()
        failed = any(self._ended[rank] for rank in ended)
        if phase > Phase.RUNNING or (ended and (failed or ended == running)):
            self._console.hurry(_LAST_READER_S if phase >= Phase.KILL else READER_S)
        else:
            self._console.calm()

    def _spread_loss(self, lost: int) -> None:
        """Tells the other ranks that one has ended although they may wait for it."""
        for rank in self._job.running:
            self._channel.send(rank, "gone", who=lost)
        self._introduce()

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            if action.do == Do.ABANDON:
                continue  # the state is OVER, and _end does it
            if action.do == Do.GONE:
                assert action.rank is not None
                self._spread_loss(action.rank)
                continue
            if action.do == Do.STRAY:
                assert action.rank is not None
                self._leave_behind(action.rank)
                continue
            if action.rank is not None:
                self._let_go(action.rank)
                continue
            if action.do == Do.RELEASE:
                self._release()
                continue
            for rank in range(len(self._job.hosts)):
                if rank not in self._job.outcomes:
                    self._channel.send(rank, "signal", number=action.signum)

    def _let_go(self, rank: int) -> None:
        """The others continue without a rank."""
        job, names = self._job, self._newcomers.places.hosts
        forget = rank in job.dismissed and names[rank] not in [names[other] for other in job.running]
        if forget:
            self.forgetful.add(job.hosts[rank])
        self._channel.send(rank, "release", forget=forget, backup="")
        self._spread_loss(rank)
        self._say(survival(job, rank))
        self._act(job.stray(self._newcomers.forget(job, rank)))
        self._on_change(Survived(names[rank], job.hosts[rank] in job.hosts_survived))

    def _leave_behind(self, rank: int) -> None:
        """A process will not join the others."""
        self._listening.pop(rank, None)
        self._channel.send(rank, "release", forget=False, backup="")
        if self._job.phase == Phase.RUNNING:
            self._say(strayed(self._job, rank))
        self._call_meeting()
        self._introduce()
        self._newcomers.settle(self._job)

    def _release(self) -> None:
        """Releases all supervisors; some first save the newest commit to a disk, if it may be needed later."""
        job, prospect = self._job, self._prospect(self._job)
        forget = prospect in (Prospect.NOBODY, Prospect.LATER)
        keepers = self._keepers() if self._plan.backup and prospect in (Prospect.LATER, Prospect.PERHAPS) else {}
        if keepers:
            job.wait_for_backup(time.monotonic())
        drop = "drop" if self._plan.backup and prospect == Prospect.NOBODY else ""
        self.forgetful |= {job.hosts[rank] for rank in job.present} if forget else set()
        for rank in range(len(job.hosts)):
            backup = "keep" if keepers.get(job.hosts[rank]) == rank else drop
            # Other supervisors on a keeper's host leave it to the keeper to remove the commits it reads.
            own = forget and (backup == "keep" or job.hosts[rank] not in keepers)
            self._channel.send(rank, "release", forget=own, backup=backup)

    def _keepers(self) -> dict[str, int]:
        """The ranks whose supervisors write the newest commit to a disk, by host.

        That is one rank that certainly has a commit, or else one per host, which may have an older generation's.
        """
        job = self._job
        sure = [rank for rank in job.present if rank in job.committers]
        return {job.hosts[rank]: rank for rank in sure[:1] or reversed(job.present)}

    def _drain(self) -> None:
        """Takes what came too late: signals are kept, and agents sent home."""
        while not self._events.empty():
            event = self._events.get()
            if isinstance(event, _Interrupted):
                self._unheard.append(event.signum)
            elif isinstance(event, Growth):
                event.dismiss()

    def _end(self) -> None:
        """Cleans up: whatever happened, nothing of this job stays on this machine."""
        self._channel.close()
        self._crews.close(self._job.status, self._not_started)
        if self._data_cluster is not None:
            self._data_cluster.stop()
        self._here.terminate()
        with self._growing:
            self._is_over = True
        self._drain()
        started = self._here.has_started or self._data_cluster is not None
        if started and not end_descendants(os.getpid(), _END_PATIENCE_S):
            self._say("some processes of the job cannot be killed; look for state D in `ps`")
        job_folder.remove(self._ticket.job)  # where the guard was killed
