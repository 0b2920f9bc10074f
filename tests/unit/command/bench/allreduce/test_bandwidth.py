"""Bandwidths by the formulas of nccl-tests."""

from __future__ import annotations

import pytest

from tfdist.command.bench.allreduce import bandwidth


def test_algorithm_is_bytes_a_second() -> None:
    assert bandwidth.algorithm(104_857_600, 0.05) == 2_097_152_000


@pytest.mark.parametrize(("ranks", "factor"), [(1, 0.0), (2, 1.0), (3, 4 / 3), (4, 1.5), (8, 1.75), (512, 511 / 256)])
def test_bus(ranks: int, factor: float) -> None:
    assert bandwidth.bus(1000, 0.5, ranks) == pytest.approx(2000 * factor, rel=1e-15)
