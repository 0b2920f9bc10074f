"""The rule by which workers are added and drained."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.data_service.process.autoscale import ADD, DRAIN, KEEP, Observation, ScalePolicy, decide
from tfdist.errors import ConfigError

POLICY = ScalePolicy(2, 4)
CALM = Observation((0.05, 0.02), 3, 0, 1000.0)


@pytest.mark.parametrize(
    ("change", "action", "reason"),
    [
        ({}, KEEP, "no change between"),
        ({"waiting": (0.0, 0.5)}, ADD, "the slowest of 2 trainers waits 50.0%"),
        ({"waiting": (0.0, 0.5), "since_change_s": 19}, KEEP, "too soon after the last change, 1 s more"),
        ({"waiting": (0.0, 0.5), "since_change_s": 20}, ADD, "50.0%"),
        ({"waiting": (0.0, 0.5), "workers": 4}, KEEP, "the maximum number of workers already runs"),
        ({"waiting": (0.0, 0.005)}, DRAIN, "waits 0.5%"),
        ({"waiting": (0.0, 0.005), "since_change_s": 119}, KEEP, "too soon"),
        ({"waiting": (0.0,), "workers": 2}, KEEP, "the minimum number of workers already runs"),
        ({"waiting": ()}, KEEP, "no trainer has been measured"),
        ({"waiting": (0.5,)}, ADD, "the trainer waits 50.0%"),
        ({"waiting": (0.005,), "since_change_s": 239, "regrets": 1}, KEEP, "too soon after the last change, 1 s more"),
        ({"waiting": (0.005,), "since_change_s": 240, "regrets": 1}, DRAIN, "waits 0.5%"),
        ({"waiting": (0.005,), "since_change_s": 7680, "regrets": 99}, DRAIN, "waits 0.5%"),
        ({"waiting": (0.9,), "unsettled": 1}, KEEP, "1 workers are starting, draining or have failed"),
        ({"waiting": (), "workers": 1, "since_change_s": 0}, ADD, "the minimum is 2"),
        ({"waiting": (0.9,), "workers": 5, "since_change_s": 0}, DRAIN, "the maximum is 4"),
    ],
)
def test_rule(change, action, reason):
    decision = decide(POLICY, dataclasses.replace(CALM, **change))
    assert decision.action == action
    assert reason in decision.reason


@given(st.lists(st.floats(0, 1), max_size=4).map(tuple), st.integers(0, 6), st.integers(0, 2), st.floats(0, 1e4))
def test_the_bounds_are_never_crossed(waiting, workers, unsettled, since):
    action = decide(POLICY, Observation(waiting, workers, unsettled, since)).action
    after = workers + {ADD: 1, DRAIN: -1, KEEP: 0}[action]
    if 2 <= workers <= 4:
        assert 2 <= after <= 4
    else:
        assert abs(after - 3) < abs(workers - 3)


def test_it_settles_and_does_not_swing():
    """Trainers wait as long as fewer than three workers run; then hardly, and not so little that one is drained."""
    workers, since, changes = 2, 0.0, []
    for _ in range(200):
        share = 0.6 if workers < 3 else 0.03
        action = decide(POLICY, Observation((share,), workers, 0, since)).action
        since += 10
        if action != KEEP:
            workers += 1 if action == ADD else -1
            since = 0.0
            changes.append(action)
    assert (workers, changes) == (3, [ADD])


def test_text():
    assert ScalePolicy.parse("1:8") == ScalePolicy(1, 8)


@pytest.mark.parametrize("text", ["", "3", "3:2", "0:2", "a:b", "1:2:3", "-1:2", "1:", "1:99999", "\u0661:\u0662"])
def test_bad_text_is_refused(text):
    with pytest.raises(ConfigError, match="MIN"):
        ScalePolicy.parse(text)


@pytest.mark.parametrize(("add", "drain"), [(0.1, 0.1), (0.1, 0.2), (1.1, 0.0), (0.5, -0.1)])
def test_thresholds_must_be_in_order(add, drain):
    with pytest.raises(ConfigError, match="drain_below < add_above"):
        ScalePolicy(1, 2, add_above=add, drain_below=drain)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
@pytest.mark.parametrize("name", ["add_after_s", "drain_after_s"])
def test_seconds_must_be_some(name, seconds):
    with pytest.raises(ConfigError, match=name):
        ScalePolicy(1, 2, **{name: seconds})


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_a_cluster_begins_within_the_bounds(workers):
    POLICY.check_start(workers)


@pytest.mark.parametrize("workers", [1, 5])
def test_a_cluster_does_not_begin_out_of_them(workers):
    with pytest.raises(ConfigError, match=f"from 2 to 4 workers must start with .* received workers={workers}"):
        POLICY.check_start(workers)
