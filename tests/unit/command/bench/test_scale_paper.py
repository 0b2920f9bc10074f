"""The one number that benchmarks/scale/paper.py chooses, on a step where it can be computed by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tfdist.command.bench.measure.statistic import expected_maximum
from tfdist.command.bench.scale.scale_cluster import Cluster
from tfdist.command.bench.scale.scale_prediction import Manner
from tfdist.command.bench.scale.scale_step import Layer, Published, Step

STEP = Step("any", 32, 8, 1.0, (Layer("a", 2.0, (3000,)),), deviation=0.5)
FREE = Cluster("free", 4, 4, float("inf"), float("inf"))


@pytest.fixture
def paper(script: Any) -> Any:
    return script("scale/paper")


def test_deviation_by_hand(paper: Any) -> None:
    """Where nothing else is lost, the slowest of 16 is 1 / 0.9 times the mean."""
    found = paper.deviation(STEP, [[0]], FREE, Manner(), Published(16, 0.9, ""))
    assert found == pytest.approx((1 / 0.9 - 1) / expected_maximum(16))


def test_no_deviation_where_the_network_explains_more_than_all(paper: Any) -> None:
    """2 (3/4) of 3,000 bytes at 1,500 bytes/s are 3 s, as long as the step itself: an efficiency of 50 %."""
    slow = Cluster("slow", 4, 4, float("inf"), 1500)
    assert paper.deviation(STEP, [[0]], slow, Manner(), Published(16, 0.6, "")) == pytest.approx(0, abs=1e-15)
