"""When lines of progress appear, on a clock of the test."""

from __future__ import annotations

from tfdist.command.bench.measure.progress import Progress


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def told(durations: list[float], shown: bool = True) -> list[str]:
    clock, lines = Clock(), list[str]()
    progress = Progress("1MB", len(durations), shown, lines.append, clock)
    for number, seconds in enumerate(durations, 1):
        clock.now += seconds
        progress.done(number)
    return lines


def test_nothing_is_said_of_what_is_over_soon() -> None:
    assert told([0.19] * 10) == []


def test_lines_come_every_two_seconds_with_the_time_left() -> None:
    assert told([1.0] * 6) == ["  1MB: 2 of 6, about 4 s left", "  1MB: 4 of 6, about 2 s left"]


def test_the_end_is_not_told() -> None:
    assert told([5.0]) == []
    assert told([5.0, 5.0]) == ["  1MB: 1 of 2, about 5 s left"]


def test_other_ranks_are_silent() -> None:
    assert told([5.0] * 3, shown=False) == []
