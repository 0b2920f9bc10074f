"""The order of calls and what is timed, on a clock of the test."""

from __future__ import annotations

import pytest

from tfdist.command.bench.measure.turn import rounds_within, take_turns


def test_calls_come_in_turn_and_only_they_are_timed() -> None:
    now, events = [0.0], list[str]()

    def taking(name: str, seconds: float) -> object:
        def call() -> None:
            events.append(name)
            now[0] += seconds

        return call

    samples = take_turns(
        [taking("a", 1.0), taking("b", 2.5)],  # type: ignore[list-item]
        rounds=3,
        before=taking("barrier", 50.0),  # type: ignore[arg-type]
        done=lambda number: events.append(f"done {number}"),
        clock=lambda: now[0],
    )
    assert samples == [[1.0] * 3, [2.5] * 3]
    assert events == [word for number in (1, 2, 3) for word in ("barrier", "a", "b", f"done {number}")]


@pytest.mark.parametrize(
    ("budget", "seconds", "rounds"),
    [(5.0, 0.1, 50), (5.0, 3.0, 5), (5.0, 1e-6, 1000), (5.0, 0.0, 1000), (0.1, 0.05, 5)],
)
def test_rounds_within_a_budget(budget: float, seconds: float, rounds: int) -> None:
    assert rounds_within(budget, seconds) == rounds
