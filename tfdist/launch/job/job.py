"""The state machine of a job: events in, actions out. It touches no process, socket or clock."""

from __future__ import annotations

import enum
import itertools
import signal
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from tfdist.launch.job.echo import distance
from tfdist.launch.job.outcome import CLOSED, LostHost, Outcome

# After the first failure: peers may report their own errors, then SIGTERM, then SIGKILL; under 10 s in total.
GRACE_S = 3.0
# The same if all ranks may be restarted, and wait until then: their state is committed.
ELASTIC_GRACE_S = 1.0
TERM_S = 2.0
# The same in that case: a rank that would leave at its next commit can no longer reach one.
ELASTIC_TERM_S = 0.5
KILL_S = 1.0
# A rank on another host was sent a signal that was not ours: its agent, or the end of its agent, explains why.
EXPLAIN_S = 0.5
RELEASE_S = 3.0
RELEASE_AFTER_KILL_S = 1.5
# The same if they write commits to a disk.
BACKUP_S = 60.0
# A signal from the user or a scheduler: a checkpoint may be written. Kubernetes kills after 30 s by default.
INTERRUPT_S = 10.0
PREEMPTION_S = 20.0
# The starter without MPI, whose name is no program.
DIRECT = "direct"


class Obstacle(enum.Enum):
    """Why an elastic job could not continue without a rank."""

    JOINING = "it had not joined the others"
    ENDING = "other ranks had already finished"
    TOO_FEW = "too few ranks were left"


class Do(enum.Enum):
    """The actions the state machine can request."""

    SIGNAL = "send a signal to all running ranks"
    GONE = "report that a rank exited without shutdown"
    RELEASE = "release the supervisors, so that their starter exits"
    STRAY = "release the supervisor of a process that will not join the others"
    ABANDON = "kill the starter and whatever is left"


@dataclass(frozen=True)
class Action:
    """One thing to do now; `rank` is set if it concerns a single rank."""

    do: Do
    signum: int = 0
    rank: int | None = None


class Phase(enum.IntEnum):
    """Where the job stands; it only moves forward."""

    RUNNING = 0
    INTERRUPTED = 1
    GRACE = 2
    TERM = 3
    KILL = 4
    RELEASED = 5
    OVER = 6


_BEFORE_SIGNALS = (Phase.RUNNING, Phase.GRACE)


class Job:
    """Tracks `len(hosts)` ranks from start to end; every method takes the time and returns what to do.

    Args:
        hosts: The host of each rank.
        start_timeout_s: Seconds within which all ranks must have started.
        now: The current time.
        elsewhere: The hosts other than the launcher's own machine; these can be lost.
        least: The fewest ranks that may continue when others have failed; None ends the job at the first failure.
        starter: The program that starts the ranks, for messages.
        by_ssh: Whether it reaches other hosts by ssh.
    """

    def __init__(
        self,
        hosts: tuple[str, ...],
        start_timeout_s: float,
        now: float,
        elsewhere: Collection[str] = (),
        least: int | None = None,
        starter: str = "mpirun",
        by_ssh: bool = True,
    ) -> None:
        self.hosts = list(hosts)
        self.starter, self.by_ssh = starter, by_ssh
        self.elsewhere = frozenset(elsewhere)
        self.least = least
        self.phase = Phase.RUNNING
        self.outcomes: dict[int, Outcome] = {}
        self.interrupt: int | None = None
        self.starter_status: int | None = None
        # Whether it printed anything; shown if it may matter.
        self.starter_spoke = False
        self.never_started: tuple[int, ...] = ()
        # The ranks that failed while the job continued, in order of time, each with the number of ranks left.
        self.survived: dict[int, int] = {}
        self.obstacle: Obstacle | None = None
        # The ranks that left at a commit because the launcher asked them to.
        self.left: set[int] = set()
        # The ranks that leave at a commit because of a signal.
        self.retired: set[int] = set()
        # The ranks that are ended because the others have waited for them for too long.
        self.hanging: set[int] = set()
        # The SIGINT or SIGTERM received, even one that only hastened an end that had already begun.
        self.told_to_end = False
        # The ranks that have made a commit from which new processes could continue.
        self.committers: set[int] = set()
        # The ranks that leave at a commit because their slots are taken away.
        self.dismissed: set[int] = set()
        # The processes that are to join the others and have not, those of them that wait for the others, and those
        # that never will join.
        self.coming: set[int] = set()
        self.arrived: set[int] = set()
        self.strayed: set[int] = set()
        # When those that have not come so far are given up.
        self.coming_until: float | None = None
        # The ranks that ended by a signal of their host's, and until when that may be explained.
        self._unexplained: dict[int, Outcome] = {}
        self._explained_until: float | None = None
        self._failed: list[int] = []
        # How hosts were lost whose agent is gone.
        self._gone: dict[str, str] = {}
        self._connected: set[int] = set()
        self._started: set[int] = set()
        self._joined: set[int] = set()
        # The ranks that have shut tfdist down, or are exiting normally.
        self._parted: set[int] = set()
        # The ranks that exited with status 0 without doing so: others may be waiting for them.
        self.silent: set[int] = set()
        self._deadline: float | None = now + start_timeout_s
        self._grace_s, self._term_s = (GRACE_S, TERM_S) if least is None else (ELASTIC_GRACE_S, ELASTIC_TERM_S)

    @property
    def deadline(self) -> float | None:
        """When to call `tick`."""
        times = (self._deadline, self.coming_until, self._explained_until)
        return min((at for at in times if at is not None), default=None)

    @property
    def members(self) -> tuple[int, ...]:
        """All ranks that are or were in the job, without those that have yet to join it or never will."""
        return tuple(rank for rank in range(len(self.hosts)) if rank not in self.coming | self.strayed)

    @property
    def running(self) -> tuple[int, ...]:
        """Those of them that have not ended."""
        return tuple(rank for rank in self.members if rank not in self.outcomes)

    @property
    def _outcomes_of_members(self) -> dict[int, Outcome]:
        aside = self.coming | self.strayed
        return {rank: outcome for rank, outcome in self.outcomes.items() if rank not in aside}

    @property
    def is_complete(self) -> bool:
        """Whether some are to join, and all of them wait for that."""
        return bool(self.coming) and self.coming <= self.arrived

    @property
    def missing(self) -> tuple[int, ...]:
        """The ranks that have not reported a start."""
        return tuple(rank for rank in self.members if rank not in self._started)

    @property
    def cause(self) -> Outcome | None:
        """The failure that ended the job: the first to arrive that was not caused by our own signals.

        Failures that the job survived do not count. An error that names another rank may arrive before that rank's own.
        """
        ignored = self.survived.keys() | self.left | self.coming | self.strayed
        failures = [outcome for rank, outcome in self.outcomes.items() if outcome.failed and rank not in ignored]
        # MPI_Abort terminates all ranks, its caller included; the caller has an exit code, the others a signal.
        place = {
            rank: (distance(self.outcomes[rank].tail), place)
            for place, rank in enumerate(self._failed)
            if rank in self.outcomes
        }
        last = (len(self.hosts), len(self.hosts))
        failures.sort(key=lambda outcome: (place.get(outcome.rank, last), outcome.signum is not None))
        return failures[0] if failures else None

    @property
    def culprit(self) -> int | None:
        """The rank of `cause` if it failed by itself, else the first reported to fail; None if there is none."""
        cause = self.cause
        return cause.rank if cause is not None and cause.rank in self._failed else self.first_to_fail

    @property
    def first_to_fail(self) -> int | None:
        """The rank whose failure was reported first, before its exit, and which the job did not survive.

        None if all ranks were only terminated by us.
        """
        return self._failed[0] if self._failed else None

    @property
    def lost_hosts(self) -> tuple[LostHost, ...]:
        """The lost hosts: none of a host's ranks has answered since the first of them vanished."""
        without_agent = [self._lost(name, how) for name, how in self._gone.items()]
        return (*without_agent, *(lost for lost in self._silent_hosts() if lost.name not in self._gone))

    def _silent_hosts(self) -> Iterator[LostHost]:
        ended = self._outcomes_of_members
        silent = {rank: outcome for rank, outcome in ended.items() if outcome.lost and not outcome.told}
        for name in dict.fromkeys(self.hosts[rank] for rank in silent):
            here = [outcome for rank, outcome in ended.items() if self.hosts[rank] == name]
            since = list(itertools.dropwhile(lambda outcome: outcome.rank not in silent, here))
            running = any(self.hosts[rank] == name for rank in self._connected - self.outcomes.keys())
            if name in self.elsewhere and not running and all(outcome.rank in silent for outcome in since):
                yield LostHost(name, tuple(sorted(outcome.rank for outcome in since)), since[0].lost)

    def _lost(self, name: str, how: str) -> LostHost:
        """A host whose agent is gone, with the ranks that had not ended by themselves."""
        here = [rank for rank in self.members if self.hosts[rank] == name]
        ended = {rank for rank, outcome in self.outcomes.items() if outcome.recorded and not outcome.told}
        return LostHost(name, tuple(rank for rank in here if rank not in ended), how)

    @property
    def hosts_survived(self) -> tuple[str, ...]:
        """The lost hosts without which the others continue."""
        return tuple(lost.name for lost in self.lost_hosts if self.survived.keys() >= set(lost.ranks))

    @property
    def doubtful(self) -> tuple[str, ...]:
        """The lost hosts that may in fact be up: if one host is lost, mpirun kills everything on all others at once.

        The first host to close its connections is lost.
        """
        return tuple(lost.name for lost in self.lost_hosts if lost.how == CLOSED)[1:]

    def spare(self, names: Collection[str]) -> None:
        """Notes that these hosts are up, and only their ranks were killed."""
        for rank, outcome in self.outcomes.items():
            if outcome.lost and self.hosts[rank] in names:
                self.outcomes[rank] = replace(outcome, told=True)
                self._failed = [failed for failed in self._failed if failed != rank]

    @property
    def unreached(self) -> tuple[str, ...]:
        """The other machines from which no rank has ever reported."""
        return tuple(sorted(self.elsewhere - {self.hosts[rank] for rank in self._connected}))

    @property
    def present(self) -> tuple[int, ...]:
        """The ranks whose supervisors are connected."""
        gone = {rank for rank, outcome in self.outcomes.items() if not outcome.recorded} | self.survived.keys()
        gone |= self.strayed
        if self.least is not None:
            gone |= self.silent
        return tuple(sorted(self._connected - gone))

    @property
    def visited(self) -> set[str]:
        """The hosts where a supervisor has run, and where commits may be."""
        return {self.hosts[rank] for rank in self._connected}

    @property
    def complete(self) -> bool:
        """Whether every rank has left a record."""
        recorded = [rank for rank, outcome in self._outcomes_of_members.items() if outcome.recorded]
        return len(recorded) == len(self.members)

    @property
    def status(self) -> int:
        """The launcher's exit status: 0 only if every rank reported success, except for those the job survived."""
        if self.interrupt is not None:
            return 128 + self.interrupt
        cause = self.cause
        if cause is None:
            enough = len(self.hosts) if self.least is None else self.least
            well = len(self.members) - len(self.survived)
            return 0 if not self.running and well >= enough else 1
        # If all ranks were only terminated by us, no rank is the cause, and the signal was ours.
        told = cause.told and cause.signum is not None and cause.rank not in self._failed
        return 1 if told else cause.status

    def connect(self, rank: int, host: str) -> bool:
        """A supervisor has connected; returns whether it may start its rank."""
        self.hosts[rank] = host
        if self.phase != Phase.RUNNING or rank in self.strayed:
            return False
        self._connected.add(rank)
        return True

    def start(self, rank: int) -> list[Action]:
        self._started.add(rank)
        if self.phase == Phase.RUNNING and not self.missing:
            self._deadline = None
        return []

    def has_started(self, ranks: Collection[int]) -> bool:
        """Whether all of these have reported a start."""
        return self._started >= set(ranks)

    def join(self, rank: int) -> None:
        """A rank has joined the others. Until then they would wait for it in MPI_Init forever."""
        self._joined.add(rank)
        self._parted.discard(rank)

    def part(self, rank: int) -> None:
        """A rank has shut tfdist down, or is exiting normally without doing so."""
        self._parted.add(rank)

    @property
    def committed(self) -> bool:
        """Whether a commit was made."""
        return bool(self.committers)

    def commit(self, rank: int) -> None:
        """A rank has made its first commit."""
        self.committers.add(rank)

    def wait_for_backup(self, now: float) -> None:
        """Released supervisors still have to write a commit to a disk before they exit."""
        if self.phase == Phase.RELEASED:
            self._deadline = now + BACKUP_S

    def fail(self, rank: int, now: float) -> list[Action]:
        """A rank's function failed. Its process may wait for others while it exits, so the job starts to end now."""
        self._note_failure(rank)
        if self.phase == Phase.RUNNING:
            self._enter(Phase.GRACE, now + self._grace_s)
        return []

    def hear_of_failure(self, rank: int, now: float) -> list[Action]:
        """The same, before its process has ended. In an elastic job the others may continue: its record decides."""
        return self.fail(rank, now) if self.least is None else []

    def hang(self, rank: int) -> None:
        """The others have waited for a rank for too long: it is ended, and they continue without it."""
        self.hanging.add(rank)

    def dismiss(self, rank: int) -> None:
        """Its slot is taken away: it leaves at a commit, and the others continue without it."""
        self.dismissed.add(rank)

    def grow(self, hosts: Collection[str], elsewhere: Collection[str], until: float) -> tuple[int, ...]:
        """More processes are started, which are to join the others; returns their numbers.

        Args:
            hosts: The host of each of them.
            elsewhere: The hosts among them that are other machines.
            until: When those that have not started are given up.
        """
        numbers = tuple(range(len(self.hosts), len(self.hosts) + len(hosts)))
        self.hosts += hosts
        self.elsewhere |= frozenset(elsewhere)
        self.coming.update(numbers)
        self.coming_until = until
        return numbers

    def arrive(self, rank: int) -> None:
        """One that is to join the others waits for them now."""
        self.arrived.add(rank)
        if self.is_complete:
            self.coming_until = None

    def admit(self) -> tuple[int, ...]:
        """Those that were to join are ranks as all others from now on. Returns their numbers."""
        joined = tuple(sorted(self.coming))
        self._joined |= self.coming
        self.coming.clear()
        return joined

    def stray(self, ranks: Collection[int]) -> list[Action]:
        """These will not join the others, which costs them nothing."""
        self.coming -= set(ranks)
        self.strayed |= set(ranks)
        if not self.coming or self.is_complete:
            self.coming_until = None
        return [Action(Do.STRAY, rank=rank) for rank in ranks]

    def leave(self, rank: int, now: float) -> list[Action]:
        """A rank leaves at a commit. The others leave at the same one, or wait for it in the next step."""
        self.left.add(rank)
        if self.phase == Phase.RUNNING:
            self._enter(Phase.GRACE, now + self._grace_s)
        return []

    def retire(self, rank: int, now: float) -> list[Action]:
        """A rank leaves at a commit because of a signal. If all ranks got one, the others leave at the same commit."""
        self.retired.add(rank)
        if self.phase == Phase.INTERRUPTED and self._deadline is not None:
            # Otherwise they may be in a collective with this rank, where no signal handler runs.
            self._deadline = min(self._deadline, now + GRACE_S)
        return []

    def finish(self, outcome: Outcome, now: float) -> list[Action]:
        """A rank's record came, or its connection was lost without one."""
        if outcome.rank in self.outcomes or outcome.rank not in self._connected or self.phase == Phase.OVER:
            return []
        if self._is_unexplained(outcome):
            self._unexplained[outcome.rank] = outcome
            self._explained_until = now + EXPLAIN_S
            return []
        self.outcomes[outcome.rank] = outcome
        self._started.add(outcome.rank)
        return self._follow(outcome, now)

    def _follow(self, outcome: Outcome, now: float) -> list[Action]:
        """What follows the end of a rank."""
        if outcome.rank in self.coming | self.strayed:
            strayed = self.stray({outcome.rank} & self.coming)
            return [*strayed, *(self._release(now) if self._all_reported() else [])]
        if self._failed_by_itself(outcome):
            if self._survive(outcome.rank):
                # Only now, so that the reactions of other ranks come after this.
                return [Action(Do.RELEASE, rank=outcome.rank)]
            self._note_failure(outcome.rank)
        if self.phase == Phase.RUNNING:
            if outcome.failed:
                self._enter(Phase.GRACE, now + self._grace_s)
            elif not self.missing:
                self._deadline = None
        elif self.phase == Phase.INTERRUPTED and self.interrupt == signal.SIGINT and self._deadline is not None:
            # The others may be in a collective with the rank that is gone, where no signal handler runs.
            self._deadline = min(self._deadline, now + GRACE_S)
        return self._release(now) if self._all_reported() else self._note_silence(outcome)

    def lose(self, name: str, how: str, now: float) -> list[Action]:
        """The agent of a host is gone, and its ranks with it; `how` continues the name of the host."""
        left = [rank for rank, at in enumerate(self.hosts) if at == name and rank not in self.outcomes]
        if self.phase >= Phase.RELEASED or not left:
            return []
        started = not self.missing
        self.outcomes |= {rank: Outcome(rank, name, lost=how) for rank in left}
        self._started.update(left)
        strayed = self.stray(set(left) & self.coming)
        left = [rank for rank in left if rank not in self.strayed]
        if left:
            self._gone.setdefault(name, how)
        return [*strayed, *self._without(left, started, now)] if left else strayed

    def _without(self, left: list[int], started: bool, now: float) -> list[Action]:
        """What follows the loss of these ranks with their host; `started` is whether all had started."""
        if self._survive_all(left):
            return [Action(Do.RELEASE, rank=rank) for rank in left]
        ended = self.phase > Phase.RUNNING
        if not ended:
            self._enter(Phase.GRACE, now + self._grace_s)
        if self._all_reported():
            return self._release(now)
        # Ranks that wait for the others to start have no error of their own to report.
        return [] if started or ended else self._signal(Phase.TERM, signal.SIGTERM, now + self._term_s)

    def end_starter(self, status: int, now: float) -> list[Action]:
        """The starter has exited. Before all ranks have reported, that is a failure whatever its status."""
        self.starter_status = status
        if self.phase >= Phase.RELEASED or not self._connected - self.outcomes.keys():
            self._enter(Phase.OVER, None)
            return []
        if self.phase < Phase.TERM:
            return self._signal(Phase.TERM, signal.SIGTERM, now + self._term_s)
        return []

    def interrupted(self, signum: int, now: float) -> list[Action]:
        """The launcher received SIGINT, SIGTERM or SIGHUP. SIGHUP is passed on to the ranks as SIGTERM."""
        again, self.told_to_end = self.told_to_end, True
        if self.phase >= Phase.KILL:
            return []
        if self.phase == Phase.RUNNING:  # otherwise the job is already ending, and this only hastens it
            self.interrupt = signum
        if again and signum == signal.SIGINT:
            return self._signal(Phase.KILL, signal.SIGKILL, now + KILL_S)
        if not self._connected:
            return self._release(now)
        phase = max(self.phase, Phase.INTERRUPTED)
        patience = INTERRUPT_S if signum == signal.SIGINT else PREEMPTION_S
        deadline = self._deadline if again or phase != Phase.INTERRUPTED else now + patience
        return self._signal(phase, signal.SIGTERM if signum == signal.SIGHUP else signum, deadline)

    def tick(self, now: float) -> list[Action]:
        """The deadline passed."""
        if self._explained_until is not None and now >= self._explained_until:
            return self._end_unexplained(now)
        if self.coming_until is not None and now >= self.coming_until:
            return self.stray(self.coming - self.arrived)
        if self._deadline is None or now < self._deadline:
            return []
        if self.phase == Phase.RUNNING:
            self.never_started = self.missing
            return self._signal(Phase.KILL, signal.SIGKILL, now + KILL_S)
        if self.phase in (Phase.INTERRUPTED, Phase.GRACE):
            return self._signal(Phase.TERM, signal.SIGTERM, now + self._term_s)
        if self.phase == Phase.TERM:
            return self._signal(Phase.KILL, signal.SIGKILL, now + KILL_S)
        if self.phase == Phase.KILL:
            for rank in sorted(self._connected - self.outcomes.keys()):
                self.outcomes[rank] = Outcome(rank, self.hosts[rank], told=True, lost="no longer answered")
            return self._release(now)
        self._enter(Phase.OVER, None)
        return [Action(Do.ABANDON)]

    def _is_unexplained(self, outcome: Outcome) -> bool:
        """Whether an agent, or its end, may have ended the rank: the agent's own connection then says so presently."""
        has_agent = self.starter == DIRECT and self.hosts[outcome.rank] in self.elsewhere
        by_others = self.phase in _BEFORE_SIGNALS and outcome.rank not in self.hanging
        return outcome.told and has_agent and by_others

    def _end_unexplained(self, now: float) -> list[Action]:
        """Their host is still there: somebody has sent them a signal, or we have since."""
        ended, self._unexplained, self._explained_until = self._unexplained, {}, None
        told = self.phase not in _BEFORE_SIGNALS
        return [action for outcome in ended.values() for action in self.finish(replace(outcome, told=told), now)]

    def _survive(self, rank: int) -> bool:
        """Whether the others continue without a rank that failed, or was lost with its host."""
        if self.least is None or self.phase != Phase.RUNNING:
            return False
        left = len(self.running)
        if rank not in self._joined:
            self.obstacle = Obstacle.JOINING
        elif any(not ended.failed for ended in self._outcomes_of_members.values()):
            self.obstacle = Obstacle.ENDING
        elif left < self.least:
            self.obstacle = Obstacle.TOO_FEW
        else:
            self.survived[rank] = left
        return self.obstacle is None

    def _survive_all(self, ranks: list[int]) -> bool:
        """The same for the ranks of a lost host: all of them or none."""
        if [rank for rank in ranks if self._survive(rank)] == ranks:
            return True
        for rank in ranks:
            self.survived.pop(rank, None)
            self._note_failure(rank)
        return False

    def _failed_by_itself(self, outcome: Outcome) -> bool:
        """Whether no signal of ours has ended it, unless that was because it hung."""
        told = outcome.told and outcome.rank not in self.hanging
        return outcome.failed and not told and outcome.rank not in self.left

    def _note_silence(self, outcome: Outcome) -> list[Action]:
        """A rank exited with status 0 without running its exit hooks, as os._exit does.

        Successful jobs may end this way too, so the others are only notified: a rank that waits for this one fails.
        """
        silent = outcome.code == 0 and not outcome.told and outcome.rank in self._joined - self._parted
        if not silent:
            return []
        self.silent.add(outcome.rank)
        return [Action(Do.GONE, rank=outcome.rank)]

    def _note_failure(self, rank: int) -> None:
        if rank not in self._failed:
            self._failed.append(rank)

    def _all_reported(self) -> bool:
        # Once the job is ending, ranks that have not connected yet are no longer started (see `connect`).
        expected = set(self.members) if self.phase == Phase.RUNNING else self._connected - self.coming - self.strayed
        return expected <= self.outcomes.keys()

    def _enter(self, phase: Phase, deadline: float | None) -> None:
        self.phase, self._deadline = phase, deadline

    def _signal(self, phase: Phase, signum: int, deadline: float | None) -> list[Action]:
        self._enter(phase, deadline)
        return [Action(Do.SIGNAL, signum)]

    def _release(self, now: float) -> list[Action]:
        if self.phase >= Phase.RELEASED:
            return []
        if self.starter_status is not None:
            self._enter(Phase.OVER, None)
        else:
            patience = RELEASE_AFTER_KILL_S if self.phase == Phase.KILL else RELEASE_S
            self._enter(Phase.RELEASED, now + patience)
        return [Action(Do.RELEASE)]
