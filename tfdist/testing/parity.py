"""Assertions about weights after distributed training: the same on every rank, and equal to a reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import tfdist


def assert_identical_on_ranks(arrays: Sequence[Any], name: str = "weights") -> None:
    """Fails on every rank unless all ranks hold the same bits.

    Args:
        arrays: Arrays or variables, the same number on every rank.
        name: What the message calls them.

    Raises:
        AssertionError: Names the first array that differs, the ranks and the largest difference.

    Example:

    ```python
    tfdist.testing.assert_identical_on_ranks(model.get_weights())
    ```
    """
    mine = [np.asarray(array) for array in arrays]
    by_rank = tfdist.allgather_object(mine, name=f"{name} of every rank")
    for rank, theirs in enumerate(by_rank):
        assert len(theirs) == len(by_rank[0]), f"rank {rank} has {len(theirs)} {name}, rank 0 {len(by_rank[0])}"
        for index, (first, other) in enumerate(zip(by_rank[0], theirs, strict=True)):
            assert first.tobytes() == other.tobytes(), (
                f"{name}[{index}] differs between rank 0 and rank {rank} by at most {np.abs(first - other).max()}"
            )


def assert_close(arrays: Sequence[Any], expected: Sequence[Any], relative: float = 1e-4, floor: float = 1e-3) -> None:
    """Fails unless each element is within `relative` of the expected one, whose magnitude counts as `floor` or more.

    Args:
        arrays: Arrays or variables.
        expected: Arrays or variables of the same shapes.
        relative: Largest relative difference.
        floor: Smallest magnitude a difference is compared with, so that elements near zero do not decide.

    Raises:
        AssertionError: Names the array and the largest relative difference.
    """
    assert len(arrays) == len(expected), f"received {len(arrays)} arrays, expected {len(expected)}"
    for index, (array, reference) in enumerate(zip(arrays, expected, strict=True)):
        actual, wanted = np.asarray(array), np.asarray(reference)
        difference = np.abs(actual - wanted) / np.maximum(np.abs(wanted), floor)
        worst = float(difference.max()) if difference.size else 0.0
        assert worst <= relative, f"array {index} differs by {worst:.2e} (relative), allowed are {relative:.0e}"
