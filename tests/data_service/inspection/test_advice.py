"""The answer to "am I input-bound?", for what trainers and workers told."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.data_service.inspection.advice import Load, advise, loads
from tfdist.data_service.inspection.status import Status
from tfdist.data_service.inspection.survey import Server, Survey
from tfdist.data_service.inspection.wait_report import TrainerWait

STATUS = Status("worker", "w:1", 2, "0.1.0", "2.21.0", "3.11.7", 12, 1000.0, "ready")


def waits(*shares, at="input"):
    return [TrainerWait(f"t{number}:1", share, at) for number, share in enumerate(shares)]


def working(*busy, state="ready"):
    return [Load(f"w{number}:1", state, share) for number, share in enumerate(busy)]


@pytest.mark.parametrize(
    ("shares", "busy", "verdict", "wanted", "at_least"),
    [
        ((0.5,), (1.0, 1.0), "input-bound", 4, False),
        ((0.1, 0.5), (1.0, 0.8), "input-bound", 4, False),
        ((0.2,), (1.0,), "input-bound", 2, False),
        ((0.6,), (1.0, 1.0), "input-bound", 5, False),
        ((0.75,), (1.0,) * 3, "input-bound", 12, False),
        ((0.76,), (1.0,) * 3, "input-bound", 12, True),
        ((1.0,), (1.0,) * 3, "input-bound", 12, True),
        ((0.5,), (0.2, 0.3), "slow elsewhere", None, False),
        ((0.5,), (0.2, 0.9), "uneven", None, False),
        ((0.1,), (1.0, 1.0), "not input-bound", None, False),
        ((0.0,), (1.0, 1.0), "not input-bound", None, False),
        ((0.0, 0.005), (0.2, 0.4, 0.3), "not input-bound", 1, False),
        ((0.0,), (0.45, 0.45, 0.45, 0.45), "not input-bound", 2, False),
        ((0.0,), (0.0, 0.0), "not input-bound", 1, False),
        ((0.05,), (0.1, 0.1), "not input-bound", None, False),
        ((), (1.0,), "unknown", None, False),
        ((0.5,), (), "unknown", None, False),
        ((0.5,), (None,), "unknown", None, False),
        ((0.5,), (None, 0.9), "input-bound", 4, False),
    ],
)
def test_verdict(shares, busy, verdict, wanted, at_least):
    found = advise(waits(*shares), working(*busy))
    assert (found.verdict, found.wanted, found.at_least, found.workers) == (verdict, wanted, at_least, len(busy))
    assert found.text and all(line.endswith(".") for line in found.text)
    json.dumps(found.to_json(), allow_nan=False)


@given(st.floats(0, 1), st.lists(st.floats(0, 1), min_size=1, max_size=9))
def test_more_for_trainers_that_wait_less_for_others(share, busy):
    found = advise(waits(share), working(*busy))
    if found.wanted is not None:
        assert 1 <= found.wanted <= 4 * len(busy)
        assert (found.wanted > len(busy)) == (found.verdict == "input-bound") == (share > 0.1)


def test_with_as_many_as_are_wanted_the_waiting_ends():
    """Workers that give a step's data in `work` seconds of one; a model that computes for `step` seconds."""
    for workers, work, step in [(1, 0.5, 0.2), (2, 1.0, 0.3), (3, 0.9, 0.1)]:
        takes = max(step, work / workers)
        wanted = advise(waits((takes - step) / takes), working(*[1.0] * workers)).wanted
        assert work / wanted <= step * 1.000001
        assert work / (wanted - 1) > step


def test_a_share_of_the_services_end_is_an_upper_bound():
    assert "measure_wait" in advise(waits(0.5, at="service"), working(1.0)).text[-1]
    assert "measure_wait" not in " ".join(advise(waits(0.5), working(1.0)).text)
    assert "measure_wait" not in " ".join(advise(waits(0.0, at="service"), working(1.0)).text)


def told_before(seconds, share=0.523):
    return dataclasses.replace(waits(share)[0], age_s=seconds)


def test_a_trainer_that_has_ended_is_not_advised():
    found = advise([told_before(10.0), told_before(14.2, 0.9)], working(1.0, 1.0))
    assert (found.verdict, found.wanted, len(found.trainers)) == ("unknown", None, 2)
    (text,) = found.text
    assert "10 s ago" in text and "52.3%" in text
    assert advise([told_before(9.9)], working(1.0, 1.0)).verdict == "input-bound"


def test_one_that_reads_is_not_judged_by_one_that_has_ended():
    found = advise([told_before(12.0, 0.9), *waits(0.5)], working(1.0, 1.0))
    assert (found.verdict, found.wanted) == ("input-bound", 4)


def test_workers_that_do_nothing_at_all_mean_that_nobody_reads():
    found = advise(waits(0.5), working(0.0, 0.0))
    assert found.verdict == "unknown" and "no trainer is reading" in found.text[0]
    assert advise(waits(0.5), working(0.0, 0.01)).verdict == "slow elsewhere"


def test_unready_workers_do_not_count_dead_ones_are_named():
    found = advise(waits(0.5), [*working(1.0), Load("gone:1", "dead", None), Load("left:1", "drained", None)])
    assert (found.workers, found.wanted) == (1, 2)
    assert "dead" in found.text[-1] and "gone:1" in found.text[-1] and "left:1" not in found.text[-1]
    assert "No worker is ready" in advise(waits(0.5), working(0.5, state="dead")).text[0]


def survey(**busy):
    workers = [
        Server(name, "ready", dataclasses.replace(STATUS, started=started, counters=counters))
        for name, (started, counters) in busy.items()
    ]
    return Survey("d:1", Server("d:1", "ready", None), tuple(workers))


def test_load_is_the_time_worked_between_two_looks():
    before = survey(
        a=(1.0, {"busy_seconds_total": 3.0}),
        b=(1.0, {"busy_seconds_total": 3.0}),
        c=(1.0, {"busy_seconds_total": 3.0}),
        d=(1.0, {"tasks": 3}),
    )
    after = survey(
        a=(1.0, {"busy_seconds_total": 4.0}),
        b=(1.0, {"busy_seconds_total": 30.0}),
        c=(2.0, {"busy_seconds_total": 0.5}),
        d=(1.0, {"tasks": 3}),
        e=(1.0, {"busy_seconds_total": 1.0}),
    )
    assert [(load.worker, load.busy) for load in loads(before, after, 4.0)] == [
        ("a", 0.25),
        ("b", 1.0),
        ("c", None),
        ("d", None),
        ("e", None),
    ]
    silent = dataclasses.replace(after, workers=(Server("a", "dead", None),))
    assert loads(before, silent, 4.0) == (Load("a", "dead", None),)
