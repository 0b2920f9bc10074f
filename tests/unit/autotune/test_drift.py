"""When step times have changed for good."""

from __future__ import annotations

import random

import pytest

from tfdist.autotune.drift import WINDOW, Drift


def after(times: list[float]) -> int | None:
    """How many times it takes until a drift is told."""
    drift = Drift()
    return next((number for number, seconds in enumerate(times, 1) if drift.add(seconds)), None)


@pytest.mark.parametrize("factor", [0.7, 1.3, 3.0])
def test_a_lasting_change_is_told(factor: float) -> None:
    chance = random.Random(1)
    times = [chance.gauss(1.0, 0.02) for _ in range(40)] + [factor * chance.gauss(1.0, 0.02) for _ in range(WINDOW)]
    told = after(times)
    assert told is not None
    assert 40 < told <= 40 + WINDOW


def test_noise_is_none() -> None:
    for seed in range(50):
        chance = random.Random(seed)
        assert after([1 + 0.1 * abs(chance.gauss(0, 1)) for _ in range(400)]) is None


def test_a_few_very_slow_ones_are_none() -> None:
    times = ([1.0] * (WINDOW - 1) + [50.0]) * 6
    assert after(times) is None
    assert after([1.0] * 20 + [50.0] * (WINDOW // 2 - 1) + [1.0] * 20) is None


def test_a_small_change_is_none() -> None:
    assert after([1.0] * 30 + [1.15] * 100) is None


def test_where_times_scatter_a_change_must_be_larger() -> None:
    wild = [0.5, 1.5] * 15
    assert after([*wild, *[1.6] * 30]) is None
    assert after([*[1.0] * 30, *[1.6] * 30]) is not None
