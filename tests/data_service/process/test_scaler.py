"""What the autoscaler sees of workers in every state, and when it looks."""

import pytest

from tfdist.data_service.process.autoscale import ADD, DRAIN, KEEP, ScalePolicy
from tfdist.data_service.process.scaler import Scaler, settled, staying
from tfdist.data_service.process.supervisor import DRAINING, ENDED, FAILED, READY, STARTING, WAITING, Member

POLICY = ScalePolicy(1, 3, add_after_s=10, drain_after_s=20)


def worker(state=READY, leaving=False):
    return Member("w", "worker", {}, state=state, leaving=leaving)


def look(scaler, now, workers, *shares):
    return scaler.look(now, workers, lambda: shares).action


@pytest.mark.parametrize(
    ("state", "leaving", "is_settled", "stays"),
    [
        (READY, False, True, True),
        (STARTING, False, False, True),
        (WAITING, False, False, True),
        (FAILED, False, False, True),
        (DRAINING, True, False, False),
        (WAITING, True, False, False),
        (FAILED, True, False, False),
        (ENDED, True, True, False),
    ],
)
def test_states(state, leaving, is_settled, stays):
    member = worker(state, leaving)
    assert (settled(member), bool(staying([member]))) == (is_settled, stays)


def test_it_asks_only_now_and_then():
    asked = []
    scaler = Scaler(POLICY, 100)
    for now in (100, 100.5, 101, 102, 102.5, 104):
        scaler.look(now, [worker()], lambda: asked.append(1) or [])
    assert len(asked) == 3


def test_it_adds_when_the_last_change_has_settled_for_a_while():
    scaler = Scaler(POLICY, 100)
    assert look(scaler, 105, [worker()], 0.5) == KEEP
    assert look(scaler, 111, [worker(), worker(STARTING)], 0.5) == KEEP
    assert look(scaler, 120, [worker(), worker()], 0.5) == KEEP
    assert look(scaler, 122, [worker(), worker()], 0.5) == ADD
    scaler.note(ADD, 122)
    assert look(scaler, 125, [worker(), worker(), worker()], 0.5) == KEEP


def test_a_worker_that_failed_for_good_stops_it():
    scaler = Scaler(POLICY, 100)
    assert look(scaler, 500, [worker(), worker(FAILED)], 0.9) == KEEP
    assert look(scaler, 900, [worker(FAILED)], 0.0) == KEEP


def test_a_worker_drained_below_the_bound_is_replaced_at_once():
    assert look(Scaler(ScalePolicy(2, 3), 100), 101, [worker(), worker(DRAINING, leaving=True)]) == ADD


def test_nobody_knows_where_the_dispatcher_does_not_answer():
    def silent():
        raise OSError("no route")

    decision = Scaler(POLICY, 0).look(100, [worker()], silent)
    assert decision.action == KEEP and "no route" in decision.reason


def test_drain_taken_back_delays_the_next_one():
    scaler, two = Scaler(POLICY, 0), [worker(), worker()]
    waited = []
    now = 0.0
    for _ in range(3):
        start = now
        while look(scaler, now, two, 0.0) != DRAIN:
            now += 5
        waited.append(now - start)
        scaler.note(DRAIN, now)
        now += 15
        assert look(scaler, now, [worker()], 0.9) == ADD
        scaler.note(ADD, now)
    assert waited == [20, 40, 80]
    now += 160
    assert look(scaler, now, two, 0.0) == DRAIN
    scaler.note(DRAIN, now)
    assert look(scaler, now + 160, two, 0.0) == DRAIN
    scaler.note(DRAIN, now + 160)
    assert look(scaler, now + 180, two, 0.0) == DRAIN  # nothing was taken back: as in the beginning
