"""What is said about repeated measurements: the median, and a confidence interval of the mean. It measures nothing."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# Halvings of an interval of at most 2^20; the rest is below a double's precision.
_HALVINGS = 80


@dataclass(frozen=True)
class Interval:
    """The mean of samples and half the width of its confidence interval; None where one sample says nothing of it."""

    mean: float
    half_width: float | None

    def __str__(self) -> str:
        return f"{self.mean:.1f}" if self.half_width is None else f"{self.mean:.1f} ± {self.half_width:.1f}"


def median(samples: Sequence[float]) -> float:
    """The middle one, or the mean of the two in the middle."""
    return statistics.median(samples)


def confidence_interval(samples: Sequence[float], confidence: float = 0.95) -> Interval:
    """The mean and where it lies: mean ± t(1 - α/2, n - 1) s / √n for n independent samples of deviation s.

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
