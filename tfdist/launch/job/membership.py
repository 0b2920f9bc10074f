"""Decides on which hosts an elastic job runs, who joins or leaves it, and when it is restarted.

A pure function of state and event. A generation is one start of all ranks, which others may join and some may leave.
`job` handles what happens within one, including continuing without a rank.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tfdist.launch.host.host import Host, used
from tfdist.system.backoff import pause_s

# How many generations in a row, except the first, may end without progress: a start can fail by chance.
_FRUITLESS = 2


@dataclass(frozen=True)
class Rules:
    """What the user requested.

    Attributes:
        least: The fewest ranks of a generation.
        most: The most ranks of a generation, if there are slots for them.
        reset_limit: How many generations may follow the first; None for any number.
        cooldown_s: How long a lost host is excluded, and a lost rank not replaced: the first time, and at most; it
            doubles with each loss. None means forever.
        timeout_s: How long to wait for hosts.
        discovers: Whether the offered hosts may change.
        final: Why the ranks cannot be restarted; empty if they can.
    """

    least: int
    most: float
    reset_limit: int | None = None
    cooldown_s: tuple[float, float] | None = None
    timeout_s: float = 600.0
    discovers: bool = False
    final: str = ""


@dataclass(frozen=True)
class Rest:
    """Until when a host is excluded, or its lost ranks are not replaced, and how many times that has happened."""

    until: float
    times: int


@dataclass(frozen=True)
class Membership:
    """The current state.

    Attributes:
        offered: The available hosts, with their slots.
        running: The hosts of the running generation, with the slots it uses; empty between generations.
        resets: Generations after the first.
        rests: The lost hosts that are excluded.
        crashes: The hosts on which ranks were lost.
        missing: How many ranks of this generation were lost while the others continued, by host.
        coming: The hosts on which processes are started to join the running ranks, with their number.
        retiring: How many ranks have been asked to leave while the others continue, by host.
        joinable: Whether others can join the running ranks; None until these know.
        leaving: Whether all ranks have been asked to leave.
        fruitless: How many generations in a row have ended without a commit or another reason to continue.
        proven: The hosts that took part in a generation that made a commit.
        waiting_since: When the last generation ended, if none is running.
    """

    offered: tuple[Host, ...]
    running: tuple[Host, ...] = ()
    resets: int = 0
    rests: Mapping[str, Rest] = field(default_factory=dict)
    crashes: Mapping[str, Rest] = field(default_factory=dict)
    missing: Mapping[str, int] = field(default_factory=dict)
    coming: tuple[Host, ...] = ()
    retiring: Mapping[str, int] = field(default_factory=dict)
    joinable: bool | None = None
    leaving: bool = False
    fruitless: int = 0
    proven: frozenset[str] = frozenset()
    waiting_since: float | None = None


@dataclass(frozen=True)
class Ended:
    """A generation has ended.

    Attributes:
        status: Its exit status.
        lost: The hosts that were lost, or could not be reached.
        interrupted: Whether the job was interrupted by a signal.
        committed: Whether a commit was made in it.
        left: Whether the ranks left because they were asked to.
        culprit: The host of the rank that failed first; empty if none did by itself.
        started: Whether it was actually started, and not only planned.
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
    """A rank on this host was lost, and the others continue. `lost`: the host too, with all its ranks."""

    host: str
    lost: bool = False


@dataclass(frozen=True)
class Joinable:
    """Whether others can join the running ranks, which these now know."""

    yes: bool


@dataclass(frozen=True)
class Grown:
    """Those that were coming have joined the running ranks, or never will.

    Attributes:
        joined: The hosts where they have, with their number.
        failed: The hosts of those that never will by a fault of their own or of their host, one entry for each.
    """

    joined: tuple[Host, ...] = ()
    failed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Offered:
    """The hosts available now. An empty list counts only between two generations."""

    hosts: tuple[Host, ...]


@dataclass(frozen=True)
class Tick:
    """Some time has passed."""


@dataclass(frozen=True)
class Launch:
    """Start the next generation, without the hosts that are blamed for the failure of the previous one."""

    hosts: tuple[Host, ...]
    without: tuple[str, ...] = ()

    @property
    def ranks(self) -> int:
        return _slots(self.hosts)


@dataclass(frozen=True)
class Grow:
    """Start this many processes on these hosts, which join the running ranks."""

    hosts: tuple[Host, ...]
    reason: str


@dataclass(frozen=True)
class Retire:
    """Ask this many ranks on these hosts to leave at their next commit; the others continue."""

    hosts: tuple[Host, ...]
    reason: str


@dataclass(frozen=True)
class Leave:
    """Ask all ranks to leave at their next commit, for a restart."""

    reason: str


@dataclass(frozen=True)
class Wait:
    """Nothing to do until then; `reason` says why, and is empty while a generation runs."""

    until: float
    reason: str = ""


@dataclass(frozen=True)
class Finish:
    """The job is over. `reason` says why it does not continue; empty if nobody would expect it to."""

    reason: str = ""


# What happens while ranks run.
Change = Survived | Joinable | Grown | Offered
Event = Ended | Change | Tick
Action = Launch | Grow | Retire | Leave | Wait | Finish


def decide(rules: Rules, state: Membership, event: Event, now: float) -> tuple[Membership, Action]:
    """Returns the next state and action for an event.

    Args:
        rules: What the user requested.
        state: The state before the event.
        event: What happened.
        now: The current time.
    """
    if isinstance(event, Ended):
        return _after(rules, state, event, now)
    if isinstance(event, Survived):
        state = _without(rules, state, event, now)
    elif isinstance(event, Joinable):
        state = replace(state, joinable=event.yes)
    elif isinstance(event, Grown):
        state = _with(rules, state, event, now)
    elif isinstance(event, Offered) and (event.hosts or not state.running):
        state = replace(state, offered=event.hosts)
    return _while_running(rules, state, now) if state.running else _between(rules, state, now)


def _without(rules: Rules, state: Membership, event: Survived, now: float) -> Membership:
    """After the loss of a rank, or of a host, or after a rank has left that was asked to."""
    name = event.host
    if event.lost:
        running = tuple(host for host in state.running if host.name != name)
        missing, crashes, retiring = dict(state.missing), dict(state.crashes), dict(state.retiring)
        for known in (missing, crashes, retiring):
            known.pop(name, None)
        rests = _later(rules, state.rests, (name,), now)
        return replace(state, running=running, missing=missing, crashes=crashes, retiring=retiring, rests=rests)
    if state.retiring.get(name):
        left = [replace(host, slots=host.slots - (host.name == name)) for host in state.running]
        retiring = {**state.retiring, name: state.retiring[name] - 1}
        return replace(state, running=tuple(host for host in left if host.slots), retiring=retiring)
    crashes = _later(rules, state.crashes, (name,), now)
    return replace(state, crashes=crashes, missing={**state.missing, name: state.missing.get(name, 0) + 1})


def _with(rules: Rules, state: Membership, event: Grown, now: float) -> Membership:
    """After processes have joined, or have not.

    One that has not counts as a lost rank where others run, and otherwise its host as lost.
    """
    running, missing = {host.name: host.slots for host in state.running}, dict(state.missing)
    for host in event.joined:
        slots, absent = running.get(host.name, 0), missing.pop(host.name, 0)
        running[host.name] = max(slots, slots - absent + host.slots)
        if absent > host.slots:
            missing[host.name] = absent - host.slots
    rests, crashes = state.rests, state.crashes
    for name in event.failed:
        if name not in running:
            rests = _later(rules, rests, () if _rests(rests, name, now) else (name,), now)
            continue
        crashes = _later(rules, crashes, (name,), now)
        started = sum(host.slots for host in state.coming if host.name == name)
        was, alive = _alive(state).get(name, 0), running[name] - missing.get(name, 0)
        running[name] = max(running[name], min(was + started, alive + event.failed.count(name)))
        missing[name] = running[name] - alive
    hosts = tuple(Host(name, slots) for name, slots in running.items())
    return replace(state, running=hosts, missing=missing, rests=rests, crashes=crashes, coming=())


def _after(rules: Rules, state: Membership, end: Ended, now: float) -> tuple[Membership, Action]:
    """The next state and action after all ranks have ended."""
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
    """The hosts to blame if the generation made no progress, while the others had worked without these hosts."""
    new = tuple(host.name for host in state.running if host.name not in state.proven)
    return new if state.proven and (not end.culprit or end.culprit in new) else ()


def _why_not_again(rules: Rules, state: Membership, end: Ended) -> str | None:
    """Why no generation follows: empty if nobody would expect one, None if one may follow."""
    if end.interrupted or (end.status == 0 and not end.left):
        return ""
    if rules.final:
        return f"not restarting the ranks: {rules.final}"
    if _is_fruitless(end) and (state.resets == 0 or state.fruitless >= _FRUITLESS):
        return (
            "not restarting the ranks: they committed nothing since they were started, so they would fail in the same "
            "way again"
        )
    if state.resets == rules.reset_limit:
        return f"not restarting the ranks: --reset-limit {rules.reset_limit} is reached"
    return None


def _is_fruitless(end: Ended) -> bool:
    """Whether the generation made no progress, and no host is to blame."""
    return not end.lost and not end.committed and not end.left


def _while_running(rules: Rules, state: Membership, now: float) -> tuple[Membership, Action]:
    rests = [*state.rests.values(), *(state.crashes.values() if state.missing else ())]
    wait = Wait(min((rest.until for rest in rests if rest.until > now), default=math.inf))
    if state.leaving:
        return state, wait
    surplus = _surplus(state)
    if surplus:
        return _shrink(rules, state, surplus, wait)
    room = () if state.coming or any(state.retiring.values()) else _room(rules, state, now)
    if not room or state.joinable is None:  # until they know, they make no commit at which they could leave
        return state, wait
    count = _slots(room)
    if all(host.slots <= state.missing.get(host.name, 0) for host in room):
        reason = f"{count} lost rank{'s' * (count > 1)} can be replaced"
    else:
        reason = f"there are slots for {sum(_alive(state).values()) + count} ranks"
    if state.joinable:
        return replace(state, coming=room), Grow(room, reason)
    return _leave(rules, state, reason, wait)


def _shrink(rules: Rules, state: Membership, surplus: tuple[Host, ...], wait: Wait) -> tuple[Membership, Action]:
    """So many ranks leave these hosts, or all if too few would be left."""
    names = [host.name for host in surplus]
    reason = f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} fewer slots or none"
    if sum(_alive(state).values()) - sum(state.retiring.values()) - _slots(surplus) < rules.least:
        return _leave(rules, state, reason, wait)
    more = {host.name: state.retiring.get(host.name, 0) + host.slots for host in surplus}
    return replace(state, retiring={**state.retiring, **more}), Retire(surplus, reason)


def _leave(rules: Rules, state: Membership, reason: str, wait: Wait) -> tuple[Membership, Action]:
    if state.resets == rules.reset_limit or rules.final:
        return state, wait
    return replace(state, leaving=True), Leave(reason)


def _alive(state: Membership) -> dict[str, int]:
    """How many ranks run, by host."""
    return {host.name: max(0, host.slots - state.missing.get(host.name, 0)) for host in state.running}


def _surplus(state: Membership) -> tuple[Host, ...]:
    """The hosts where more ranks run than there are slots, and how many more, without those that are leaving."""
    offered = {host.name: host.slots for host in state.offered}
    alive = _alive(state)
    more = {name: ranks - state.retiring.get(name, 0) - offered.get(name, 0) for name, ranks in alive.items()}
    return tuple(Host(name, count) for name, count in more.items() if count > 0)


def _room(rules: Rules, state: Membership, now: float) -> tuple[Host, ...]:
    """The hosts where more ranks could run, and how many more."""
    offered = {host.name: host.slots for host in state.offered}
    held = _alive(state)
    if not all(rest.until <= now for rest in state.crashes.values()):
        # Lost ranks are replaced together. A host that vanished after its last rank holds no slots for new ones.
        held = {
            host.name: host.slots if held[host.name] else min(host.slots, offered.get(host.name, 0))
            for host in state.running
        }
    left = rules.most - sum(held.values())
    found = []
    for host in _present(state, now):
        count = int(min(host.slots - held.get(host.name, 0), left))
        if count > 0:
            found.append(Host(host.name, count))
            left -= count
    return tuple(found)


def _between(rules: Rules, state: Membership, now: float) -> tuple[Membership, Action]:
    present = _present(state, now)
    slots = _slots(present)
    if slots >= rules.least:
        hosts = used(present, int(min(slots, rules.most)))
        first = state.waiting_since is None
        resets = state.resets if first else state.resets + 1
        begun = Membership(
            offered=state.offered,
            running=hosts,
            resets=resets,
            rests=state.rests,
            crashes=state.crashes,
            fruitless=state.fruitless,
            proven=state.proven,
        )
        return begun, Launch(hosts)
    since = now if state.waiting_since is None else state.waiting_since
    state = replace(state, waiting_since=since)
    room = f"{slots} rank{'' if slots == 1 else 's'}"
    short = f"the remaining hosts have slots for {room}, but --min-np is {rules.least}"
    end = since + rules.timeout_s
    back = min((rest.until for rest in state.rests.values() if rest.until > now), default=math.inf)
    if back == math.inf and not rules.discovers:
        return state, Finish(f"{short}; no other host can join (--blacklist-cooldown-range lets a lost host return)")
    if now >= end:
        return state, Finish(f"{short}; no host joined within {rules.timeout_s:g} s (--elastic-timeout)")
    return state, Wait(min(back, end), f"{short}; waiting up to {end - now:.0f} s for hosts")


def _present(state: Membership, now: float) -> tuple[Host, ...]:
    return tuple(host for host in state.offered if not _rests(state.rests, host.name, now))


def _rests(rests: Mapping[str, Rest], name: str, now: float) -> bool:
    return name in rests and rests[name].until > now


def _slots(hosts: tuple[Host, ...]) -> int:
    return sum(host.slots for host in hosts)


def _later(rules: Rules, rests: Mapping[str, Rest], names: tuple[str, ...], now: float) -> dict[str, Rest]:
    """The rests with new ones for these hosts, longer each time."""
    after = dict(rests)
    for name in names:
        times = rests[name].times + 1 if name in rests else 1
        if rules.cooldown_s is None:
            after[name] = Rest(math.inf, times)
        else:
            first, most = rules.cooldown_s
            after[name] = Rest(now + pause_s(first, most, times), times)
    return after
