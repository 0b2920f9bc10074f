"""Medians and confidence intervals, against scipy and against samples whose mean is known."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from tfdist.command.bench.measure.statistic import Interval, confidence_interval, expected_maximum, median, student_t


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


@pytest.mark.parametrize(
    ("count", "maximum"),
    [(2, 1 / math.sqrt(math.pi)), (3, 1.5 / math.sqrt(math.pi)), (10, 1.53875), (100, 2.50759), (1000, 3.24144)],
)
def test_expected_maximum_of_the_tables(count: int, maximum: float) -> None:
    """Of 2 and 3 in closed form, of more from tables of normal order statistics (Harter (1961))."""
    assert expected_maximum(count) == pytest.approx(maximum, abs=5e-6)


def test_expected_maximum_of_one_is_the_mean_and_grows() -> None:
    assert expected_maximum(1) == pytest.approx(0, abs=1e-12)
    maxima = [expected_maximum(count) for count in (1, 2, 3, 4, 16, 512, 4096)]
    assert maxima == sorted(set(maxima))


@pytest.mark.parametrize("count", [4, 64, 4096])
def test_expected_maximum_against_the_approximation_of_blom(count: int) -> None:
    """Blom (1958): the quantile of (n - 0.375) / (n + 0.25), here within two percent."""
    blom = statistics.NormalDist().inv_cdf((count - 0.375) / (count + 0.25))
    assert expected_maximum(count) == pytest.approx(blom, rel=2e-2)


def test_expected_maximum_of_drawn_numbers() -> None:
    numbers = random.Random(1)
    maxima = [max(numbers.gauss(0, 1) for _ in range(16)) for _ in range(4000)]
    assert statistics.fmean(maxima) == pytest.approx(expected_maximum(16), abs=0.03)
