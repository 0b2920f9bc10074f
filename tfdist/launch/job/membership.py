"""On which hosts an elastic job runs, and when it is started anew: a pure function of state and event.

A generation is one start of all ranks. What happens within one, also going on without a rank, is decided in `job`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tfdist.launch.host.host import Host, used
from tfdist.system.backoff import pause_s

# How many generations in a row, but the first, may end without a reason to go on: starting ranks may be lost by chance.
_FRUITLESS = 2


@dataclass(frozen=True)
class Rules:
    """What the user has asked for.

    Attributes:
        least: The fewest ranks of a generation.
        most: The ranks of a generation where there are slots for them.
        reset_limit: How many generations may follow the first; None for any number.
        cooldown_s: For how long a lost host is left out, and a lost rank not replaced, the first time, and at most; it
            doubles from one time to the next. None is for good.
        timeout_s: How long to wait for hosts.
        discovers: Whether the hosts that are offered may change.
    """

    least: int
    most: float
    reset_limit: int | None = None
    cooldown_s: tuple[float, float] | None = None
    timeout_s: float = 600.0
    discovers: bool = False


@dataclass(frozen=True)
class Rest:
    """A host is left out, or what it lost not replaced, until some time; it was so many times."""

    until: float
    times: int


@dataclass(frozen=True)
class Membership:
    """What is known.

    Attributes:
        offered: The hosts there are, with their slots.
        running: Those of the generation that runs, with the slots that it uses; none between two.
        resets: Generations after the first.
        rests: The lost hosts.
        crashes: The hosts of which ranks were lost.
        missing: How many ranks of the generation were lost and survived, by host.
        leaving: Whether the ranks have been asked to leave.
        fruitless: How many generations have ended, one after another, without a commit or another reason to go on.
        proven: The hosts that took part in a generation that committed something.
        waiting_since: When the last generation ended, if none runs.
    """

    offered: tuple[Host, ...]
    running: tuple[Host, ...] = ()
    resets: int = 0
    rests: Mapping[str, Rest] = field(default_factory=dict)
    crashes: Mapping[str, Rest] = field(default_factory=dict)
    missing: Mapping[str, int] = field(default_factory=dict)
    leaving: bool = False
    fruitless: int = 0
    proven: frozenset[str] = frozenset()
    waiting_since: float | None = None


@dataclass(frozen=True)
class Ended:
    """A generation came to its end.

    Attributes:
        status: Its exit status.
        lost: The hosts that were lost, or could not be reached.
        interrupted: Whether the job was told to end.
        committed: Whether a commit was made in it.
        left: Whether the ranks left, as they were asked to.
        culprit: The host of the rank that failed first; empty if none did by itself.
        started: Whether it was started at all, and not only decided on.
    """

    status: int
    lost: tuple[str, ...] = ()
    interrupted: bool = False
    committed: bool = False
    left: bool = False
    culprit: str = ""
    started: bool = True


@dataclass(frozen=True)
class Survived:
    """A rank on this host was lost, and the others go on."""

    host: str


@dataclass(frozen=True)
class Offered:
    """The hosts that there are now. None at all is believed between two generations only."""

    hosts: tuple[Host, ...]


@dataclass(frozen=True)
class Tick:
    """Some time has passed."""


@dataclass(frozen=True)
class Launch:
    """Start the next generation, without the hosts that are to blame for the end of the one before."""

    hosts: tuple[Host, ...]
    without: tuple[str, ...] = ()

    @property
    def ranks(self) -> int:
        return _slots(self.hosts)


@dataclass(frozen=True)
class Leave:
    """Ask all ranks to leave at their next commit."""

    reason: str


@dataclass(frozen=True)
class Wait:
    """Nothing to do until then; `reason` says what for, and is empty while a generation runs."""

    until: float
    reason: str = ""


@dataclass(frozen=True)
class Finish:
    """The job is over. `reason` tells why it does not go on; empty where nobody would expect it to."""

    reason: str = ""


Event = Ended | Survived | Offered | Tick
Action = Launch | Leave | Wait | Finish


def decide(rules: Rules, state: Membership, event: Event, now: float) -> tuple[Membership, Action]:
    """What follows from an event.

    Args:
        rules: What the user has asked for.
        state: What was known before.
        event: What happened.
        now: The time.
    """
    if isinstance(event, Ended):
        return _after(rules, state, event, now)
    if isinstance(event, Survived):
        crashes = _later(rules, state.crashes, (event.host,), now)
        missing = {**state.missing, event.host: state.missing.get(event.host, 0) + 1}
        state = replace(state, crashes=crashes, missing=missing)
    elif isinstance(event, Offered) and (event.hosts or not state.running):
        state = replace(state, offered=event.hosts)
    return _while_running(rules, state, now) if state.running else _between(rules, state, now)


def _after(rules: Rules, state: Membership, end: Ended, now: float) -> tuple[Membership, Action]:
    """What follows when all ranks have ended."""
    if not end.started:
        state = replace(state, resets=state.resets - 1)
    blamed = _newcomers(state, end) if _is_fruitless(end) else ()
    end = replace(end, lost=(*end.lost, *blamed))
    reason = _why_not_again(rules, state, end)
    if reason is not None:
        return state, Finish(reason)
    proven = state.proven.union(host.name for host in state.running) if end.committed or end.left else state.proven
    state = Membership(
        offered=state.offered,
        resets=state.resets,
        rests=_later(rules, state.rests, end.lost, now),
        crashes=state.crashes,
        fruitless=state.fruitless + 1 if _is_fruitless(end) else 0,
        proven=proven,
        waiting_since=now,
    )
    state, action = _between(rules, state, now)
    return state, replace(action, without=blamed) if isinstance(action, Launch) else action


def _newcomers(state: Membership, end: Ended) -> tuple[str, ...]:
    """The hosts that may be to blame where others have done well without them, and the generation did nothing."""
    new = tuple(host.name for host in state.running if host.name not in state.proven)
    return new if state.proven and (not end.culprit or end.culprit in new) else ()


def _why_not_again(rules: Rules, state: Membership, end: Ended) -> str | None:
    """Why no generation follows, empty if nobody would expect one; None if one may."""
    if end.interrupted or (end.status == 0 and not end.left):
        return ""
    if _is_fruitless(end) and (state.resets == 0 or state.fruitless >= _FRUITLESS):
        return (
            "the ranks are not started anew, since they had not committed anything since they were started: they "
            "would come to the same end"
        )
    if state.resets == rules.reset_limit:
        return f"the ranks are not started anew: --reset-limit {rules.reset_limit} is reached"
    return None


def _is_fruitless(end: Ended) -> bool:
    """Whether the generation was of no use, and no host is to blame."""
    return not end.lost and not end.committed and not end.left


def _while_running(rules: Rules, state: Membership, now: float) -> tuple[Membership, Action]:
    reason = "" if state.leaving or state.resets == rules.reset_limit else _why_leave(rules, state, now)
    if reason:
        return replace(state, leaving=True), Leave(reason)
    rests = [*state.rests.values(), *(state.crashes.values() if state.missing else ())]
    return state, Wait(min((rest.until for rest in rests if rest.until > now), default=math.inf))


def _why_leave(rules: Rules, state: Membership, now: float) -> str:
    """What speaks for another generation in place of the one that runs; empty if nothing does."""
    offered = {host.name: host.slots for host in state.offered}
    alive = {host.name: max(0, host.slots - state.missing.get(host.name, 0)) for host in state.running}
    gone = [name for name, ranks in alive.items() if offered.get(name, 0) < ranks]
    if gone:
        return f"{', '.join(gone)} {'has' if len(gone) == 1 else 'have'} fewer slots or none"
    possible = min(_slots(_present(state, now)), rules.most)
    # A host that has gone after its last rank keeps no place for others to come.
    used_up = (host.slots if alive[host.name] else min(host.slots, offered.get(host.name, 0)) for host in state.running)
    if possible > sum(used_up):
        return f"there are slots for {possible:g} ranks"
    # Of all together: this machine may call itself otherwise than the user does.
    lost = possible - _slots(state.running) + sum(state.missing.values())
    if state.missing and lost > 0 and all(rest.until <= now for rest in state.crashes.values()):
        return f"{lost:g} lost rank{'s are' if lost > 1 else ' is'} replaced"
    return ""


def _between(rules: Rules, state: Membership, now: float) -> tuple[Membership, Action]:
    present = _present(state, now)
    slots = _slots(present)
    if slots >= rules.least:
        hosts = used(present, int(min(slots, rules.most)))
        first = state.waiting_since is None
        resets = state.resets if first else state.resets + 1
        return replace(state, running=hosts, resets=resets, missing={}, waiting_since=None), Launch(hosts)
    since = now if state.waiting_since is None else state.waiting_since
    state = replace(state, waiting_since=since)
    room = f"{slots} rank{'' if slots == 1 else 's'}"
    short = f"the hosts that are left have slots for {room}, and --min-np is {rules.least}"
    end = since + rules.timeout_s
    back = min((rest.until for rest in state.rests.values() if rest.until > now), default=math.inf)
    if back == math.inf and not rules.discovers:
        return state, Finish(f"{short}; no other host can come (--blacklist-cooldown-range lets a lost one come back)")
    if now >= end:
        return state, Finish(f"{short}; none came within {rules.timeout_s:g} s (--elastic-timeout)")
    return state, Wait(min(back, end), f"{short}; waiting for hosts, {end - now:.0f} s at most")


def _present(state: Membership, now: float) -> tuple[Host, ...]:
    return tuple(host for host in state.offered if host.name not in state.rests or state.rests[host.name].until <= now)


def _slots(hosts: tuple[Host, ...]) -> int:
    return sum(host.slots for host in hosts)


def _later(rules: Rules, rests: Mapping[str, Rest], names: tuple[str, ...], now: float) -> dict[str, Rest]:
    """The rests with those of these hosts begun, the longer the more often."""
    after = dict(rests)
    for name in names:
        times = rests[name].times + 1 if name in rests else 1
        if rules.cooldown_s is None:
            after[name] = Rest(math.inf, times)
        else:
            first, most = rules.cooldown_s
            after[name] = Rest(now + pause_s(first, most, times), times)
    return after
