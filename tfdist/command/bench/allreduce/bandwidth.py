"""Computes the bandwidths of an allreduce from its bytes and its time."""

from __future__ import annotations


def algorithm(size_bytes: int, seconds: float) -> float:
    """Tensor bytes per second: nccl-tests, doc/PERFORMANCE.md, "Algorithm bandwidth"."""
    return size_bytes / seconds


def bus(size_bytes: int, seconds: float, ranks: int) -> float:
    """Bytes per second that must pass through each rank's link: nccl-tests, doc/PERFORMANCE.md, "Bus bandwidth".

    Each of n ranks must send and receive (n - 1) / n of the bytes twice, so this is the algorithm bandwidth times
    2 (n - 1) / n. It is comparable with the hardware's bandwidth for any number of ranks. A single rank has no bus: 0.
    """
    return algorithm(size_bytes, seconds) * 2 * (ranks - 1) / ranks
