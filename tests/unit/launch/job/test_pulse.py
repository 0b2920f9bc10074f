"""Tests of tfdist.launch.job.pulse."""

from __future__ import annotations

import pytest

from tfdist.launch.job.pulse import Pulse


def _steps(pulse: Pulse, number: int) -> list[int]:
    """What is silent after so many steps, none of which was late."""
    return [rank for _ in range(number) for rank in pulse.advance(pulse.step_s)]


@pytest.mark.parametrize(("limit_s", "step_s"), [(2.0, 0.2), (10.0, 1.0), (600.0, 1.0)])
def test_looks_often_enough(limit_s: float, step_s: float) -> None:
    assert Pulse(limit_s).step_s == step_s


def test_silence_is_counted_from_the_last_sign() -> None:
    pulse = Pulse(10.0)
    pulse.watch(0)
    pulse.watch(3)
    assert _steps(pulse, 9) == []
    pulse.hear(3)
    assert _steps(pulse, 1) == [0]
    pulse.forget(0)
    assert _steps(pulse, 8) == []
    assert _steps(pulse, 1) == [3]


def test_rank_that_is_not_watched_may_be_silent() -> None:
    pulse = Pulse(10.0)
    pulse.hear(2)
    pulse.forget(1)
    assert _steps(pulse, 50) == []
    pulse.watch(1)  # it has all the time from here
    assert _steps(pulse, 9) == []
    assert _steps(pulse, 1) == [1]


def test_time_without_listening_is_not_silence_of_others() -> None:
    pulse = Pulse(10.0)
    pulse.watch(0)
    assert pulse.advance(3600.0) == []
    assert pulse.advance(3600.0) == []
    pulse.hear(0)
    assert _steps(pulse, 9) == []
    assert _steps(pulse, 1) == [0]
