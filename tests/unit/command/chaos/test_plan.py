"""Tests of tfdist.command.chaos.plan."""

import pytest

from tfdist.command.chaos.plan import Fault, Plan, seconds
from tfdist.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value"), [("30", 30), ("30s", 30), ("500ms", 0.5), ("2m", 120), ("1h", 3600), ("0.25s", 0.25)]
)
def test_seconds(text, value):
    assert seconds(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "0", "0s", "-1", "1d", "s", "1 s", "1e3", "nan", "١s"])
def test_no_time(text):
    with pytest.raises(ConfigError, match="is not a time; expected more than 0, such as 500ms"):
        seconds(text)


def test_faults_of_two_kinds_come_in_order():
    plan = Plan({"kill": 30.0, "stop": 50.0}, None, 0)
    seen = []
    for _ in range(6):
        fault = plan.next
        seen.append((fault.kind, fault.at))
        plan.do(fault, [0, 1])
    assert seen == [("kill", 30), ("stop", 50), ("kill", 60), ("kill", 90), ("stop", 100), ("kill", 120)]


def test_the_most():
    plan = Plan({"kill": 1.0}, 2, 0)
    assert plan.do(plan.next, []) is None, "nobody to kill is no fault"
    assert plan.do(plan.next, [3]) == 3
    assert plan.next == Fault("kill", 3.0)
    assert plan.do(plan.next, [3]) == 3
    assert plan.next is None


def test_a_seed_chooses_the_same_again_whatever_the_order():
    def chosen(seed, ranks):
        plan = Plan({"kill": 1.0}, None, seed)
        return [plan.do(plan.next, ranks) for _ in range(20)]

    assert chosen(7, [0, 1, 2, 3]) == chosen(7, [3, 2, 0, 1]) != chosen(8, [0, 1, 2, 3])
    assert set(chosen(7, [0, 1, 2, 3])) == {0, 1, 2, 3}
