"""Assertions about weights after distributed training: the same on every rank, and equal to a reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import tfdist


def _array(value: Any) -> np.ndarray[Any, Any]:
    # np.asarray of a bfloat16 scalar tensor fails in TensorFlow.
    return np.asarray(value.numpy() if hasattr(value, "numpy") else value)


def assert_identical_on_ranks(arrays: Sequence[Any], name: str = "weights") -> None:
    """Fails on every rank unless all ranks hold the same bits.

    Args:
        arrays: Arrays or variables, the same number on every rank.
        name: Name of the arrays in the message.

    Raises:
        AssertionError: Names the first array that differs, the ranks and the largest difference.

    Example:

    ```python
    tfdist.testing.assert_identical_on_ranks(model.get_weights())
    ```
    """
    mine = [_array(array) for array in arrays]
    by_rank = tfdist.allgather_object(mine, name=f"{name} of every rank")
    for rank, theirs in enumerate(by_rank):
        assert len(theirs) == len(by_rank[0]), f"rank {rank} has {len(theirs)} {name}, rank 0 {len(by_rank[0])}"
        for index, (first, other) in enumerate(zip(by_rank[0], theirs, strict=True)):
            assert (first.dtype, first.shape) == (other.dtype, other.shape), (
                f"{name}[{index}] is {first.dtype} {first.shape} on rank 0, {other.dtype} {other.shape} on rank {rank}"
            )
            assert first.tobytes() == other.tobytes(), (
                f"{name}[{index}] differs between rank 0 and rank {rank} by at most {np.abs(first - other).max()}"
            )


def assert_equal(tensor: Any, expected: Any) -> None:
    """Fails unless dtype, shape and every element equal those of `expected`.

    You need it for collectives on inputs with exact sums, which need no tolerance.

    Args:
        tensor: Tensor or array.
        expected: Array.

    Raises:
        AssertionError: Says what was received and what was expected.

    Example:

    ```python
    tfdist.testing.assert_equal(total, tfdist.testing.expected_sum((100,), "float16", tfdist.size()))
    ```
    """
    actual, wanted = _array(tensor), _array(expected)
    assert actual.dtype == wanted.dtype, f"received {actual.dtype}, expected {wanted.dtype}"
    assert actual.shape == wanted.shape, f"received shape {actual.shape}, expected {wanted.shape}"
    assert np.array_equal(actual, wanted), f"received {actual}, expected {wanted}"


def assert_close(arrays: Sequence[Any], expected: Sequence[Any], relative: float = 1e-4, floor: float = 1e-3) -> None:
    """Fails unless each element is within `relative` of the expected one, whose magnitude counts as at least `floor`.

    Args:
        arrays: Arrays or variables.
        expected: Arrays or variables of the same shapes.
        relative: Largest relative difference.
        floor: Smallest magnitude a difference is compared with, so that elements near zero do not dominate.

    Raises:
        AssertionError: Names the array, and the shapes or the largest relative difference.
    """
    assert len(arrays) == len(expected), f"received {len(arrays)} arrays, expected {len(expected)}"
    for index, (array, reference) in enumerate(zip(arrays, expected, strict=True)):
        actual, wanted = _array(array), _array(reference)
        assert actual.shape == wanted.shape, f"array {index} has shape {actual.shape}, expected {wanted.shape}"
        difference = np.abs(actual - wanted) / np.maximum(np.abs(wanted), floor)
        worst = float(difference.max()) if difference.size else 0.0
        assert worst <= relative, f"array {index} differs by {worst:.2e} (relative), expected at most {relative:.0e}"
