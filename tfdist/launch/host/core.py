"""The processor cores a job may use on this host, and the threads each rank gets. Not a topology library."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_SYSTEM = Path("/sys")
_THREADS = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")


@dataclass(frozen=True)
class Cores:
    """`count` physical cores; `bindable` if mpirun may pin ranks to them, that is if all of the machine's are ours."""

    count: int
    bindable: bool


def available(system: Path = _SYSTEM) -> Cores:
    """What affinity mask, container quota and hyperthreading leave of the machine."""
    allowed = os.sched_getaffinity(0)
    siblings = {_siblings(system, cpu) for cpu in allowed}
    quota = _quota(system)
    count = len(siblings) if quota is None else min(len(siblings), max(1, math.ceil(quota)))
    # mpirun sees the whole machine and not our mask or quota: pinning inside a part of it would collide.
    return Cores(count, bindable=quota is None and len(allowed) == os.cpu_count())


def _siblings(system: Path, cpu: int) -> str:
    """Names the core that `cpu` is a hardware thread of."""
    try:
        return (system / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def _quota(system: Path) -> float | None:
    """Cores' worth of time the container may use; None if unlimited. Control groups version 2, then version 1."""
    groups = system / "fs/cgroup"
    try:
        limit, period = (groups / "cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        pass
    try:
        limit = (groups / "cpu/cpu.cfs_quota_us").read_text()
        period = (groups / "cpu/cpu.cfs_period_us").read_text()
        return int(limit) / int(period) if int(limit) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None


def thread_defaults(share: int, environment: Mapping[str, str]) -> dict[str, str]:
    """The thread variables to set for each of several ranks on a host, where the user has not set them.

    Each rank of TensorFlow starts as many threads as the host has cores; n ranks would start n times too many.

    Args:
        share: Cores for each rank.
        environment: What the user has set.
    """
    threads = max(1, share)
    return {name: str(threads) for name in _THREADS if not environment.get(name)}
