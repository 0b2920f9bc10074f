"""Statistics of repeated measurements: median, confidence interval, expected maximum."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# Halvings of an interval of at most 2^20; the rest is below a double's precision.
_HALVINGS = 80
# Points for integrating the normal distribution: 0 to 12, beyond which it is negligible; an odd number.
_POINTS = [12 * index / 2400 for index in range(2401)]


@dataclass(frozen=True)
class Interval:
    """The mean of samples and half the width of its confidence interval; None for a single sample."""

    mean: float
    half_width: float | None

    def __str__(self) -> str:
        return f"{self.mean:.1f}" if self.half_width is None else f"{self.mean:.1f} ± {self.half_width:.1f}"


def median(samples: Sequence[float]) -> float:
    """The middle value, or the mean of the two middle ones."""
    return statistics.median(samples)


def confidence_interval(samples: Sequence[float], confidence: float = 0.95) -> Interval:
    """The mean and its confidence interval: mean ± t(1 - α/2, n - 1) s / √n for n independent samples of deviation s.

    Source: Student (1908), "The probable error of a mean"; NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.5.2.
    """
    count = len(samples)
    mean = statistics.fmean(samples)
    if count < 2:
        return Interval(mean, None)
    return Interval(mean, student_t(confidence, count - 1) * statistics.stdev(samples) / math.sqrt(count))


def student_t(confidence: float, freedom: int) -> float:
    """The t that |T| exceeds with probability 1 - confidence, for `freedom` degrees of freedom, 1 or more."""
    low, high = 0.0, float(1 << 20)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < confidence else (low, middle)
    return high


@functools.cache
def expected_maximum(count: int) -> float:
    """The expected largest of `count` independent standard normal numbers; 0 for a single one.

    E = integral of (1 - F(x)^n) over x > 0, minus that of F(x)^n over x < 0, for the distribution F, by Simpson's rule.
    Source: David and Nagaraja (2003), "Order Statistics", section 3.1; Blom (1958) approximates the same.
    """
    above = (-math.expm1(count * math.log1p(-_beyond(x))) for x in _POINTS)
    below = (_beyond(x) ** count for x in _POINTS)
    width = _POINTS[1]
    weights = (1 if index in (0, len(_POINTS) - 1) else 4 if index % 2 else 2 for index in range(len(_POINTS)))
    return sum(w * (a - b) for w, a, b in zip(weights, above, below, strict=True)) * width / 3


def _beyond(x: float) -> float:
    """P(X > x) of a standard normal number."""
    return math.erfc(x / math.sqrt(2)) / 2


def _within(t: float, freedom: int) -> float:
    """P(|T| <= t). Source: Abramowitz and Stegun (1964), 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine = math.cos(angle)
    odd = freedom % 2
    term = total = 0.0 if freedom == 1 else (cosine if odd else 1.0)
    for index in range(2 + odd, freedom - 1, 2):
        term *= (index - 1) / index * cosine * cosine
        total += term
    return (angle + math.sin(angle) * total) * 2 / math.pi if odd else math.sin(angle) * total
