"""Inputs whose sums over ranks are known exactly, so that a test of a collective needs no tolerance.

The idea is that of nccl-tests' `verifiable.h`: small integers, which add up exactly in every dtype and every order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from tfdist.errors import ConfigError

MAX_SIZE = 256

# dtype -> (largest magnitude, n): at each position one rank in n has a nonzero value, so that the sum over 256 ranks,
# and every partial sum of a floating dtype, is an integer that the dtype can represent.
_LIMITS = {
    "bool": (1, 4),
    "int8": (1, 4),  # 64 of 256 ranks: 64 of 127
    "uint8": (3, 4),  # 192 of 255
    "int16": (100, 1),
    "uint16": (200, 1),
    "int32": (10_000, 1),
    "int64": (10_000, 1),
    "float16": (8, 1),  # integers up to 2,048
    "bfloat16": (1, 1),  # integers up to 256
    "float32": (10_000, 1),  # integers up to 16,777,216
    "float64": (10_000, 1),
}


def summable(shape: Sequence[int], dtype: Any, rank: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Returns this rank's input, whose sum over the first n <= 256 ranks is exact in `dtype`.

    The values look random and differ by rank, so a lost, duplicated or misplaced contribution shows. A float32
    tensor that is sent in 16 bits stays exact if its values come from `summable(shape, "bfloat16", ...)`.

    Args:
        shape: Shape of the array.
        dtype: numpy or TensorFlow dtype, or its name: bool, (u)int8, (u)int16, int32, int64, float16, bfloat16, float32
            or float64.
        rank: 0 to 255.
        seed: Another seed gives other values.

    Raises:
        ConfigError: If the dtype or the rank is not supported.

    Example:

    ```python
    mine = summable((1000,), "float16", tfdist.rank())
    total = tfdist.allreduce(mine, op=tfdist.Sum)
    assert (total.numpy() == expected_sum((1000,), "float16", tfdist.size())).all()
    ```
    """
    kind = _dtype(dtype)
    return _integers(shape, kind, rank, seed).astype(kind)


def expected_sum(shape: Sequence[int], dtype: Any, size: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Returns the sum of `summable` over the ranks 0 to `size - 1`; of bool, whether any is True.

    Args:
        shape: As for `summable`.
        dtype: As for `summable`.
        size: Number of ranks, 1 to 256.
        seed: As for `summable`.

    Raises:
        ConfigError: If the dtype or the size is not supported.
    """
    return _total(shape, dtype, size, seed).astype(_dtype(dtype))


def expected_average(shape: Sequence[int], dtype: Any, size: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Returns the exact sum divided by `size` and rounded once; exact where `size` is a power of two.

    Args:
        shape: As for `summable`.
        dtype: A floating dtype of `summable`.
        size: Number of ranks, 1 to 256.
        seed: As for `summable`.

    Raises:
        ConfigError: If the dtype is not floating, or the size is not supported.
    """
    kind = _dtype(dtype)
    if kind.kind in "biu":
        raise ConfigError(f"an average needs a floating dtype; received {kind.name}.")
    return (_total(shape, dtype, size, seed) / size).astype(kind)


def expected_min(shape: Sequence[int], dtype: Any, size: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Returns the elementwise minimum of `summable` over the ranks 0 to `size - 1`.

    Args:
        shape: As for `summable`.
        dtype: As for `summable`.
        size: Number of ranks, 1 to 256.
        seed: As for `summable`.

    Raises:
        ConfigError: If the dtype or the size is not supported.
    """
    return _stack(shape, dtype, size, seed).min(axis=0).astype(_dtype(dtype))


def expected_max(shape: Sequence[int], dtype: Any, size: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Returns the elementwise maximum of `summable` over the ranks 0 to `size - 1`.

    Args:
        shape: As for `summable`.
        dtype: As for `summable`.
        size: Number of ranks, 1 to 256.
        seed: As for `summable`.

    Raises:
        ConfigError: If the dtype or the size is not supported.
    """
    return _stack(shape, dtype, size, seed).max(axis=0).astype(_dtype(dtype))


def _dtype(dtype: Any) -> np.dtype[Any]:
    known = getattr(dtype, "as_numpy_dtype", dtype)
    if isinstance(known, str) and known == "bfloat16":
        known = ml_dtypes.bfloat16
    try:
        kind = np.dtype(known)
    except TypeError:
        kind = None
    if kind is None or kind.name not in _LIMITS:
        raise ConfigError(f"dtype must be one of {', '.join(_LIMITS)}; received {dtype!r}.")
    return kind


def _integers(shape: Sequence[int], kind: np.dtype[Any], rank: int, seed: int) -> np.ndarray[Any, Any]:
    if not 0 <= rank < MAX_SIZE:
        raise ConfigError(f"rank must be 0 to {MAX_SIZE - 1}; received {rank!r}.")
    limit, share = _LIMITS[kind.name]
    index = np.arange(int(np.prod(shape, dtype=np.int64)), dtype=np.uint64)
    lowest = 0 if kind.kind in "bu" else -limit
    values = lowest + (_scramble(index, rank, seed) % np.uint64(limit - lowest + 1)).astype(np.int64)
    values[(index + np.uint64(rank)) % np.uint64(share) != 0] = 0
    return values.reshape(tuple(shape))


def _scramble(index: np.ndarray[Any, Any], rank: int, seed: int) -> np.ndarray[Any, Any]:
    """Numbers that look random, from the finalizer of SplitMix64 (Steele, Lea and Flood 2014, figure 16)."""
    start = ((rank + 1) * 0x9E3779B97F4A7C15 + seed * 0xD1B54A32D192ED03) % 2**64
    mixed = index * np.uint64(0x9E3779B97F4A7C15) + np.uint64(start)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    # The starts of the ranks are whole steps of the index apart, so mix in the rank once more.
    mixed ^= np.uint64((rank * 0xA24BAED4963EE407) % 2**64)
    mixed = (mixed ^ (mixed >> np.uint64(31))) * np.uint64(0x9FB21C651E98DF25)
    return mixed ^ (mixed >> np.uint64(32))


def _total(shape: Sequence[int], dtype: Any, size: int, seed: int) -> np.ndarray[Any, Any]:
    kind = _dtype(dtype)
    _check_size(size)
    total = np.zeros(tuple(shape), np.int64)
    for rank in range(size):
        total += _integers(shape, kind, rank, seed)
    return total


def _stack(shape: Sequence[int], dtype: Any, size: int, seed: int) -> np.ndarray[Any, Any]:
    kind = _dtype(dtype)
    _check_size(size)
    return np.stack([_integers(shape, kind, rank, seed) for rank in range(size)])


def _check_size(size: int) -> None:
    if not 1 <= size <= MAX_SIZE:
        raise ConfigError(f"size must be 1 to {MAX_SIZE}; received {size!r}.")
