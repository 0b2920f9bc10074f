"""Medians and confidence intervals, against scipy and against samples whose mean is known."""

from __future__ import annotations

import random
import statistics

import pytest

from tfdist.bench.statistic import Interval, confidence_interval, median, student_t


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 6, 9, 10, 29, 30, 99, 1000])
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.99])
def test_quantiles_of_student(freedom: int, confidence: float) -> None:
    scipy = pytest.importorskip("scipy.stats")
    assert student_t(confidence, freedom) == pytest.approx(scipy.t.ppf((1 + confidence) / 2, freedom), rel=1e-9)


@pytest.mark.parametrize(("freedom", "quantile"), [(1, 12.706), (2, 4.303), (5, 2.571), (30, 2.042), (100, 1.984)])
def test_quantiles_of_the_tables(freedom: int, quantile: float) -> None:
    assert student_t(0.95, freedom) == pytest.approx(quantile, abs=5e-4)


def test_interval_of_known_samples() -> None:
    """n = 4, mean 5, s = sqrt(20/3): half width 3.18245 * s / 2."""
    interval = confidence_interval([2.0, 4.0, 6.0, 8.0])
    assert interval.mean == 5.0
    assert interval.half_width == pytest.approx(4.1085, abs=1e-4)
    assert str(interval) == "5.0 ± 4.1"


def test_one_sample_says_nothing_of_its_spread() -> None:
    assert confidence_interval([7.25]) == Interval(7.25, None)
    assert str(Interval(7.25, None)) == "7.2"


def test_the_interval_holds_the_mean_95_times_in_100() -> None:
    numbers = random.Random(1)
    hits = 0
    for _ in range(2000):
        interval = confidence_interval([numbers.gauss(10.0, 3.0) for _ in range(6)])
        assert interval.half_width is not None
        hits += abs(interval.mean - 10.0) <= interval.half_width
    assert 0.935 < hits / 2000 < 0.965


def test_median() -> None:
    assert median([3.0, 1.0, 100.0]) == 3.0
    assert median([4.0, 1.0]) == statistics.fmean([4.0, 1.0])
