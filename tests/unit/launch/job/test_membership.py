"""Tests of tfdist.launch.job.membership: whole courses of elastic jobs, without a process or a clock."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.launch.host.host import Host
from tfdist.launch.job.membership import (
    Action,
    Ended,
    Event,
    Finish,
    Grow,
    Grown,
    Joinable,
    Launch,
    Leave,
    Membership,
    Offered,
    Rest,
    Retire,
    Rules,
    Survived,
    Tick,
    Wait,
    decide,
)

A, B, C = Host("a", 2), Host("b", 2), Host("c", 2)
RULES = Rules(least=2, most=4)
BEGIN = Membership(offered=(A, B), running=(A, B))
FAILED = Ended(1, committed=True)


def _after(
    rules: Rules, *events: Event, begin: Membership = BEGIN, times: tuple[float, ...] | None = None
) -> tuple[Membership, Action]:
    state, action = begin, None
    for event, now in zip(events, times or [0.0] * len(events), strict=True):
        state, action = decide(rules, state, event, now)
    assert action is not None
    return state, action


def _lost(*names: str, committed: bool = True) -> Ended:
    return Ended(1, names, committed=committed)


# All ranks have ended


@pytest.mark.parametrize("event", [Ended(0), Ended(0, ("a",)), Ended(130, interrupted=True, committed=True, left=True)])
def test_job_that_is_over(event: Ended) -> None:
    assert _after(RULES, event) == (BEGIN, Finish())


def test_failure_is_followed_by_all_ranks_anew() -> None:
    state, action = _after(RULES, FAILED, FAILED, FAILED)
    assert action == Launch((A, B)) and action.ranks == 4
    assert state == replace(BEGIN, resets=3, proven=frozenset("ab"))


def test_program_that_commits_nothing_is_not_started_again() -> None:
    _, action = _after(RULES, Ended(3))
    assert isinstance(action, Finish) and "committed nothing" in action.reason


def test_restarted_ranks_may_fail_twice_before_a_commit() -> None:
    """As when a rank is killed just then, or a host is lost and answers again when it is asked."""
    again, lost = Ended(137), _lost("a", committed=False)
    assert isinstance(_after(RULES, FAILED, again, again)[1], Launch)
    assert isinstance(_after(RULES, FAILED, again, again, again)[1], Finish)
    assert isinstance(_after(RULES, FAILED, again, again, FAILED, again, again)[1], Launch)
    assert isinstance(_after(RULES, lost, again, again)[1], Launch)
    assert isinstance(_after(RULES, lost, again, again, again)[1], Finish)


def test_new_host_on_which_nothing_works_is_left_out() -> None:
    """It may lack the program; the others have done well without it."""
    rules = replace(RULES, most=math.inf, discovers=True)
    state, action = _after(rules, Offered((A, B, C)), Ended(1, left=True))
    assert action == Launch((A, B, C))
    for culprit in ("c", ""):  # a rank there fails, or none ever starts
        after, action = decide(rules, state, Ended(127, culprit=culprit), 0.0)
        assert action == Launch((A, B), without=("c",))
        assert after.rests == {"c": Rest(math.inf, 1)}
        assert decide(rules, after, Ended(1, committed=True), 0.0)[1] == Launch((A, B))
    assert decide(rules, state, Ended(127, culprit="a"), 0.0)[1] == Launch((A, B, C)), "by chance"
    assert isinstance(_after(rules, Ended(127))[1], Finish), "all are new"


def test_lost_host_is_left_out_whatever_was_committed() -> None:
    state, action = _after(RULES, _lost("a", committed=False))
    assert action == Launch((B,))
    assert state.rests == {"a": Rest(math.inf, 1)}
    assert _after(RULES, _lost("a"), FAILED)[1] == Launch((B,))


def test_spare_host_takes_the_place_of_a_lost_one() -> None:
    rules = replace(RULES, most=3)
    begin = Membership(offered=(A, B, C), running=(A, Host("b", 1)))
    assert _after(rules, FAILED, begin=begin)[1] == Launch((A, Host("b", 1)))
    assert _after(rules, _lost("a"), begin=begin)[1] == Launch((B, Host("c", 1)))
    assert _after(rules, _lost("a", "b"), begin=begin)[1] == Launch((C,))


@pytest.mark.parametrize("limit", [0, 1, 2, 5])
def test_reset_limit(limit: int) -> None:
    rules = replace(RULES, reset_limit=limit)
    state = BEGIN
    for _ in range(limit):
        state, action = decide(rules, state, FAILED, 0.0)
        assert isinstance(action, Launch)
    assert decide(rules, state, FAILED, 0.0)[1] == Finish(f"not restarting the ranks: --reset-limit {limit} is reached")


def test_start_that_was_only_decided_on_is_no_reset() -> None:
    """A host of it has no address any more."""
    rules = replace(RULES, reset_limit=1)
    state, action = _after(rules, FAILED, Ended(1, ("b",), started=False))
    assert (action, state.resets) == (Launch((A,)), 1)
    assert isinstance(decide(rules, state, FAILED, 1.0)[1], Finish)


def test_too_few_slots_and_nobody_who_could_come() -> None:
    _, action = _after(replace(RULES, least=3), _lost("a"))
    assert isinstance(action, Finish)
    assert action.reason.startswith("the remaining hosts have slots for 2 ranks, but --min-np is 3; no other host")


def test_cooldown_doubles_from_the_first_time_to_the_most() -> None:
    rules = replace(RULES, cooldown_s=(10, 35))
    state, now = BEGIN, 100.0
    for expected in (10, 20, 35, 35):
        state, _ = decide(rules, state, _lost("b"), now)
        assert state.rests["b"].until == now + expected
        now += 1000
    assert state.rests["b"].times == 4
    assert "a" not in state.rests


def test_lost_host_comes_back_after_its_cooldown() -> None:
    rules = replace(RULES, cooldown_s=(10, 35))
    assert _after(rules, _lost("b"), FAILED, times=(0, 9.9))[1] == Launch((A,))
    assert _after(rules, _lost("b"), FAILED, times=(0, 10))[1] == Launch((A, B))


def test_wait_for_a_lost_host() -> None:
    rules = replace(RULES, least=4, cooldown_s=(10, 35), timeout_s=60)
    state, action = _after(rules, _lost("b"), times=(5,))
    short = "the remaining hosts have slots for 2 ranks, but --min-np is 4"
    assert action == Wait(15.0, f"{short}; waiting up to 60 s for hosts")
    state, action = decide(rules, state, Tick(), 15.0)
    assert action == Launch((A, B))
    assert (state.running, state.resets, state.waiting_since) == ((A, B), 1, None)


@pytest.mark.parametrize("rules", [replace(RULES, cooldown_s=(100, 100)), replace(RULES, discovers=True)])
def test_wait_ends(rules: Rules) -> None:
    rules = replace(rules, least=4, timeout_s=60)
    state, action = _after(rules, _lost("b"), times=(5,))
    assert isinstance(action, Wait) and action.until == 65
    _, action = decide(rules, state, Tick(), 65.0)
    assert isinstance(action, Finish) and action.reason.endswith("no host joined within 60 s (--elastic-timeout)")


def test_wait_ends_when_a_host_is_found() -> None:
    rules = replace(RULES, least=4, discovers=True)
    assert _after(rules, _lost("b"), Offered((A, B, C)), times=(0, 3))[1] == Launch((A, C))


# While ranks run


def test_nothing_to_do() -> None:
    assert _after(RULES, Tick()) == (BEGIN, Wait(math.inf))
    assert _after(RULES, Offered((A, B))) == (BEGIN, Wait(math.inf))
    assert _after(RULES, Offered((A, B, C)))[1] == Wait(math.inf), "no more ranks than asked for"
    assert _after(RULES, Survived("a"))[1] == Wait(math.inf)


OPEN = replace(BEGIN, joinable=True)
CLOSED = replace(BEGIN, joinable=False)


def test_more_slots() -> None:
    rules = replace(RULES, most=math.inf)
    state, action = _after(rules, Offered((A, B, C)), begin=OPEN)
    assert action == Grow((C,), "there are slots for 6 ranks")
    assert decide(rules, state, Offered((A, B, Host("c", 3))), 1.0)[1] == Wait(math.inf), "one after another"
    state, action = decide(rules, state, Grown((C,)), 2.0)
    assert (action, state.running, state.resets, state.coming) == (Wait(math.inf), (A, B, C), 0, ())
    assert decide(rules, state, Offered((Host("a", 3), B, C)), 3.0)[1] == Grow(
        (Host("a", 1),), "there are slots for 7 ranks"
    )
    assert _after(replace(rules, most=5), Offered((A, B, C)), begin=OPEN)[1] == Grow(
        (Host("c", 1),), "there are slots for 5 ranks"
    )


def test_more_slots_where_nobody_can_join() -> None:
    rules = replace(RULES, most=math.inf)
    state, action = _after(rules, Offered((A, B, C)))
    assert action == Wait(math.inf), "the ranks do not know yet"
    state, action = decide(rules, state, Joinable(yes=False), 0.0)
    assert action == Leave("there are slots for 6 ranks")
    assert decide(rules, state, Offered((A, B, C)), 1.0)[1] == Wait(math.inf), "once"
    state, action = decide(rules, state, Ended(1, left=True), 2.0)
    assert action == Launch((A, B, C))
    assert (state.resets, state.leaving, state.joinable) == (1, False, None)


def test_newcomer_that_fails_costs_the_others_nothing() -> None:
    """On a host with other ranks it counts as a lost one, and otherwise its host as lost."""
    rules = replace(RULES, most=math.inf, cooldown_s=(10, 35))
    state, _ = _after(rules, Offered((Host("a", 4), B, C)), begin=OPEN)
    assert state.coming == (Host("a", 2), C)
    state, action = decide(rules, state, Grown((Host("a", 1), Host("c", 1)), ("a", "c")), 0.0)
    assert (state.running, state.missing) == ((Host("a", 4), B, C), {"a": 1, "c": 1})
    assert action == Wait(10.0)
    state, action = decide(rules, state, Tick(), 10.0)
    assert action == Grow((Host("a", 1), Host("c", 1)), "2 lost ranks can be replaced")
    state, _ = _after(rules, Offered((A, B, C)), Grown(failed=("c", "c")), begin=OPEN)
    assert (state.running, state.rests) == ((A, B), {"c": Rest(10.0, 1)}), "once for the host"
    assert decide(rules, state, Tick(), 10.0)[1] == Grow((C,), "there are slots for 6 ranks")


def test_host_that_is_to_be_left() -> None:
    state, action = _after(RULES, Offered((A,)))
    assert action == Retire((B,), "b has fewer slots or none")
    assert decide(RULES, state, Offered((A,)), 1.0)[1] == Wait(math.inf), "once"
    state, action = decide(RULES, state, Survived("b"), 2.0)
    assert (action, state.running) == (Wait(math.inf), (A, Host("b", 1)))
    state, action = decide(RULES, state, Survived("b"), 2.0)
    assert (state.running, state.missing, state.crashes) == ((A,), {}, {}), "no loss"
    assert _after(RULES, Offered((Host("a", 1), B)))[1] == Retire((Host("a", 1),), "a has fewer slots or none")


def test_host_that_is_to_be_left_by_too_many() -> None:
    """Where too few would be left, all leave, and wait for hosts."""
    assert _after(RULES, Offered((C,)))[1] == Leave("a, b have fewer slots or none")
    assert _after(replace(RULES, least=3), Offered((A,)))[1] == Leave("b has fewer slots or none")


def test_empty_list_is_believed_only_where_no_rank_runs() -> None:
    assert _after(RULES, Offered(())) == (BEGIN, Wait(math.inf))
    rules = replace(RULES, least=4, discovers=True)
    state, action = _after(rules, Offered(()), _lost("a"), Offered(()))
    assert isinstance(action, Wait) and "have slots for 0 ranks" in action.reason
    assert decide(rules, state, Offered((B, C)), 1.0)[1] == Launch((B, C))


def test_limit_holds_for_planned_restarts_too() -> None:
    """Ranks that join or leave are no restart."""
    rules = replace(RULES, most=math.inf, reset_limit=1)
    more, closed = Offered((A, B, C)), Joinable(yes=False)
    assert isinstance(_after(rules, FAILED, closed, more)[1], Wait)
    assert isinstance(_after(rules, closed, more)[1], Leave)
    assert isinstance(_after(rules, FAILED, Joinable(yes=True), more)[1], Grow)


def test_lost_rank_is_replaced_after_its_cooldown() -> None:
    rules = replace(RULES, cooldown_s=(10, 35))
    state, action = _after(rules, Survived("a"), Survived("b"), times=(0, 5), begin=OPEN)
    assert action == Wait(10.0)
    state, action = decide(rules, state, Tick(), 10.0)
    assert action == Wait(15.0), "all of them at once"
    state, action = decide(rules, state, Tick(), 15.0)
    assert action == Grow((Host("a", 1), Host("b", 1)), "2 lost ranks can be replaced")
    state, action = decide(rules, state, Grown((Host("a", 1), Host("b", 1))), 16.0)
    assert (action, state.running, state.missing) == (Wait(math.inf), (A, B), {})
    assert _after(rules, Survived("a"), begin=state, times=(20,))[1] == Wait(40.0), "twice as long the second time"


def test_lost_host_that_comes_back_while_ranks_run() -> None:
    rules = replace(RULES, cooldown_s=(10, 35))
    state, action = _after(rules, Survived("b", lost=True), begin=OPEN)
    assert action == Wait(10.0)
    assert decide(rules, state, Tick(), 9.0)[1] == Wait(10.0)
    assert decide(rules, state, Tick(), 10.0)[1] == Grow((B,), "there are slots for 4 ranks")


def test_spare_host_joins_when_another_is_lost() -> None:
    begin = replace(OPEN, offered=(A, B, C))
    assert _after(RULES, Survived("b", lost=True), begin=begin)[1] == Grow((C,), "there are slots for 4 ranks")
    assert _after(RULES, Survived("b"), begin=begin)[1] == Wait(math.inf), "a rank alone is not replaced"


def test_host_that_goes_after_its_last_rank() -> None:
    """Nothing changes for the others, but where another host comes in its place."""
    rules = replace(RULES, cooldown_s=(10, 35), discovers=True)
    both = (Survived("b"), Survived("b"))
    one = Retire((Host("b", 1),), "b has fewer slots or none")
    assert _after(rules, Survived("b"), Offered((A,)), begin=OPEN)[1] == one
    assert _after(rules, Survived("b"), Offered((A, Host("b", 1))), begin=OPEN)[1] == Wait(10.0), "one rank runs there"
    state, action = _after(rules, *both, Offered((A,)), begin=OPEN)
    assert action == Wait(20.0)
    assert decide(rules, state, Tick(), 100.0)[1] == Wait(math.inf), "there is nothing to replace them with"
    assert decide(rules, state, Offered((A, C)), 1.0)[1] == Grow((C,), "there are slots for 4 ranks")
    assert decide(rules, state, Offered((A, B)), 1.0)[1] == Wait(20.0), "back, and it rests as before"
    assert decide(rules, state, Offered((A, B)), 20.0)[1] == Grow((B,), "2 lost ranks can be replaced")


def test_failure_while_leaving() -> None:
    state, _ = _after(replace(RULES, least=3), Offered((A, C)), begin=CLOSED)
    assert state.leaving
    assert decide(replace(RULES, least=3), state, FAILED, 1.0)[1] == Launch((A, C))


def test_all_hosts_lost_while_leaving() -> None:
    """The next generation knows nothing of what the one before was asked to do."""
    state, action = _after(RULES, Offered((A, B, C)), *(Survived(name, lost=True) for name in "ab"), begin=CLOSED)
    assert (action, state.running, state.leaving) == (Launch((C,)), (C,), False)


_hosts = st.lists(st.sampled_from([A, B, C]), unique=True).map(tuple)
_ends = st.builds(
    Ended,
    status=st.sampled_from([0, 1, 137]),
    lost=st.lists(st.sampled_from("abc"), unique=True).map(tuple),
    interrupted=st.booleans(),
    committed=st.booleans(),
    left=st.booleans(),
)
_events = st.one_of(
    _ends,
    st.builds(Offered, _hosts),
    st.builds(Survived, st.sampled_from("abc"), st.booleans()),
    st.builds(Joinable, st.booleans()),
    st.just(Tick()),
)
_rules = st.builds(
    Rules,
    least=st.integers(1, 6),
    most=st.integers(1, 6) | st.just(math.inf),
    reset_limit=st.none() | st.integers(0, 3),
    cooldown_s=st.none() | st.tuples(st.floats(0.1, 10), st.floats(10, 50)),
    timeout_s=st.floats(1, 100),
    discovers=st.booleans(),
).filter(lambda rules: rules.least <= rules.most)


@given(_rules, st.lists(st.tuples(_events, st.floats(0, 30)), max_size=20))
def test_every_course(rules: Rules, course: list[tuple[Event, float]]) -> None:
    """What holds whatever happens."""
    state, now = BEGIN, 0.0
    for event, pause in course:
        before, now = state, now + pause
        if state.coming:  # none or all of them join before anything else happens
            state, _ = decide(rules, state, Grown(state.coming) if pause > 15 else Grown(failed=("c",)), now)
            assert not state.coming or isinstance(state.coming[0], Host)
        names = {host.name for host in state.running}
        if isinstance(event, Survived) and (event.host not in names or (event.lost and names == {event.host})):
            continue  # nobody is left, so the job ends instead
        before = state
        state, action = decide(rules, state, event, now)
        assert isinstance(action, (Wait, Finish)) or state.running
        assert state.resets - before.resets in (0, 1)
        assert state.resets <= (math.inf if rules.reset_limit is None else max(rules.reset_limit, 0))
        _check(rules, before, event, state, action, now)
        if isinstance(action, Finish):
            return


def _check(rules: Rules, before: Membership, event: Event, state: Membership, action: Action, now: float) -> None:
    if isinstance(action, Launch):
        assert rules.least <= action.ranks <= rules.most
        assert _are_present(action.hosts, state, now)
        assert (state.running, state.leaving, state.missing) == (action.hosts, False, {})
    elif isinstance(action, Grow):
        assert state.joinable and state.coming == action.hosts
        assert _slots(state) + sum(host.slots for host in action.hosts) <= rules.most
        assert {host.name for host in action.hosts} <= {host.name for host in state.offered}
    elif isinstance(action, Retire):
        assert _slots(state) - sum(state.retiring.values()) >= rules.least
    elif isinstance(action, Leave):
        assert (state.leaving, before.leaving) == (True, False)
        assert _others(state, event) == _others(before, event)
    elif isinstance(action, Wait):
        longest = math.inf if state.waiting_since is None else state.waiting_since + rules.timeout_s
        assert now < action.until <= longest


def _others(state: Membership, event: Event) -> list[Host]:
    """The hosts with ranks, without that where the event itself is a loss."""
    return [host for host in state.running if not isinstance(event, Survived) or host.name != event.host]


def _slots(state: Membership) -> int:
    """How many ranks run."""
    return sum(host.slots for host in state.running) - sum(state.missing.values())


def _are_present(hosts: tuple[Host, ...], state: Membership, now: float) -> bool:
    """With so many slots, and with nobody that still is to rest."""
    slots = {host.name: host.slots for host in state.offered}
    away = {name for name, rest in state.rests.items() if rest.until > now}
    return all(host.slots <= slots[host.name] for host in hosts) and away.isdisjoint(host.name for host in hosts)


@pytest.mark.parametrize("cooldown", [None, (1.0, 2.0)])
def test_all_courses_of_three_events(cooldown: tuple[float, float] | None) -> None:
    """No event is forgotten in any state, and a job that waits comes to an end."""
    events: list[Event] = [
        *(FAILED, _lost("a"), _lost("a", "b"), Ended(1), Ended(0), Ended(1, left=True), Tick()),
        *(Offered((A,)), Offered(()), Offered((A, B, C)), Survived("a")),
    ]
    rules = Rules(least=2, most=5, cooldown_s=cooldown, timeout_s=5, discovers=True)
    for course in itertools.product(events, repeat=3):
        state, action, now = BEGIN, None, 0.0
        for event in course:
            state, action = decide(rules, state, event, now)
            if isinstance(action, Finish):
                break
        while isinstance(action, Wait) and not state.running:
            now = action.until
            assert now <= 10
            state, action = decide(rules, state, Tick(), now)
        assert isinstance(action, Finish) or state.running
