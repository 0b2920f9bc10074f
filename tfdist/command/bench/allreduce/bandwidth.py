"""Bandwidths of an allreduce from its bytes and its time. It measures nothing."""

from __future__ import annotations


def algorithm(size_bytes: int, seconds: float) -> float:
    """Bytes of the tensors a second: nccl-tests, doc/PERFORMANCE.md, "Algorithm bandwidth"."""
    return size_bytes / seconds


def bus(size_bytes: int, seconds: float, ranks: int) -> float:
    """Bytes a second that must pass through each rank's link: nccl-tests, doc/PERFORMANCE.md, "Bus bandwidth".

    Each of n ranks has to send and to receive (n - 1) / n of the bytes twice, so this is the algorithm bandwidth times
    2 (n - 1) / n, and compares with what the hardware can do whatever the number of ranks. A single rank has no bus: 0.
    """
    return algorithm(size_bytes, seconds) * 2 * (ranks - 1) / ranks
