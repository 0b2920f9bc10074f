"""Whether and when a server is started again."""

import pytest

from tfdist.data_service.process.restart import RestartPolicy, decide

POLICY = RestartPolicy(limit=4, window_s=100, first_s=1, longest_s=3)


@pytest.mark.parametrize(
    ("failures", "delay"),
    [
        ([50], 1),
        ([49, 50], 2),
        ([48, 49, 50], 3),
        ([47, 48, 49, 50], 3),
        ([46, 47, 48, 49, 50], None),
        ([-60, -55, -50, -49.9, 50], 2),
        ([*[-50] * 9, 50], 1),
    ],
)
def test_delays_grow_to_a_limit_and_old_failures_are_forgotten(failures, delay):
    decision = decide(POLICY, failures, 50)
    assert decision.restart_at == (None if delay is None else 50 + delay)


def test_the_reason_is_said():
    for failures, facts in ((1, ("in 1 s", "restart 1 of 4")), (5, ("5 times within 100 s", "4 are allowed"))):
        assert all(fact in decide(POLICY, [50] * failures, 50).reason for fact in facts)


def test_no_restart_at_all():
    assert decide(RestartPolicy(limit=0), [1], 1).restart_at is None
