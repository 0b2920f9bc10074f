"""benchmarks/elastic_recovery.py without running anything: its jobs, what it reads from one, and the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def recovery(script: Any) -> Any:
    return script("elastic_recovery")


@pytest.mark.parametrize("number", range(6))
def test_jobs(recovery: Any, number: int) -> None:
    """Each fault begins with the ranks that the one before has left, and hits some that live. Newcomers count on."""
    for make, _ in recovery.JOBS.values():
        alive, step = set(range(make(number)[0].of)), 0
        next_rank = len(alive)
        for fault in make(number):
            assert fault.of == len(alive) and set(fault.ranks) <= alive, fault
            if fault.how not in ("back", "again"):
                assert fault.step > step
                step = fault.step
            alive -= set(fault.ranks) if fault.size < fault.of else set()
            if fault.how in ("back", "joins"):
                alive |= set(range(next_rank, next_rank + fault.size - len(alive)))
            elif len(alive) != fault.size:  # all anew
                alive = set(range(fault.size))
            next_rank = max(next_rank, 1 + max(alive))


def test_every_rank_has_its_turn(recovery: Any) -> None:
    assert {recovery.in_place(number)[0].ranks for number in range(3)} == {(1,), (2,), (3,)}
    assert {recovery.hang(number)[0].ranks for number in range(3)} == {(1,), (2,), (3,)}


def _record(folder: Path, steps: str, **faults: str) -> None:
    (folder / "steps").write_text(steps)
    for name, text in faults.items():
        (folder / name.replace("_", "-")).write_text(text)


def test_the_first_rank_that_ends_the_next_step_counts(recovery: Any, tmp_path: Path) -> None:
    _record(tmp_path, "19 1.0 4\n20 2.0 4\n20 2.2 4\n21 5.5 2\n21 5.25 2\n", fault_0_1="2.5 20", fault_0_2="3.0 20")
    fault = recovery.Fault("two", 20, (1, 2), "kill", 2)
    assert recovery.standstills(tmp_path, [fault]) == {"two": 2.25}


def test_a_step_whose_commit_is_hit_is_done(recovery: Any, tmp_path: Path) -> None:
    """Others tell the end of it a little later than the fault."""
    _record(tmp_path, "20 2.0 2\n21 3.25 2\n22 4.0 1\n", fault_0_0="3.0 21")
    fault = recovery.Fault("commit", 20, (0,), "commit", 1, of=2)
    assert recovery.standstills(tmp_path, [fault]) == {"commit": 1.0}


def test_a_planned_start_begins_with_the_last_step_before_it(recovery: Any, tmp_path: Path) -> None:
    _record(tmp_path, "80 1.0 4\n81 1.5 4\n300 4.0 4\n301 9.0 3\n302 9.5 3\n", fault_0_0="1.0 80")
    fault = recovery.Fault("fewer", 80, (0,), "hosts", 3)
    assert recovery.standstills(tmp_path, [fault]) == {"fewer": 5.0}


def test_a_host_is_lost_again_when_ranks_are_back(recovery: Any) -> None:
    first, _, second = recovery.flapping(0)
    due = [(step, since, size) for step in range(150) for since, size in ((1, 4), (21, 2), (100, 4))]
    assert [one for one in due if recovery.is_due(second, *one)] == [(120, 100, 4)]
    assert {step for step, since, size in due if recovery.is_due(first, step, since, size)} == {20}


def test_a_host_that_comes_back_and_is_lost_again(recovery: Any, tmp_path: Path) -> None:
    steps = "20 1.0 4\n21 6.0 2\n99 7.0 2\n100 15.0 4\n120 16.0 4\n121 20.0 2\n"
    _record(tmp_path, steps, fault_0_0="1.5 20", fault_0_host="2.0 0", fault_2_0="16.5 120", fault_2_host="17.0 0")
    assert list(recovery.standstills(tmp_path, recovery.flapping(0)).values()) == [4.0, 8.0, 3.0]


def test_a_job_that_went_on_in_another_way(recovery: Any, tmp_path: Path) -> None:
    _record(tmp_path, "20 2.0 4\n21 5.0 4\n", fault_0_1="2.5 20")
    fault = recovery.Fault("one", 20, (1,), "kill", 3)
    with pytest.raises(RuntimeError, match="one: 4 ranks went on, not 3"):
        recovery.standstills(tmp_path, [fault])


def test_table(recovery: Any) -> None:
    seconds = [number / 100 for number in range(20, 0, -1)]
    assert recovery.rows({"a": seconds, "b": [1.5]}) == [
        ["a", "20", "0.105", "0.190", "0.200"],
        ["b", "1", "1.500", "1.500", "1.500"],
    ]


def test_a_newcomer_costs_what_exceeds_a_step(recovery: Any, tmp_path: Path) -> None:
    _record(tmp_path, "20 1.0 4\n21 1.5 4\n22 2.0 4\n22 2.25 4\n23 4.25 5\n23 4.5 5\n", fault_0_0="1.0 20")
    fault = recovery.Fault("joins", 20, (0,), "joins", 5)
    assert recovery.standstills(tmp_path, [fault]) == {"joins": 1.5}
