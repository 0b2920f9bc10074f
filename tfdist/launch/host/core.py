"""The processor cores a job may use on this host, and the threads each rank gets."""

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
    """`count` physical cores; `bindable` if mpirun may pin ranks to them, that is, if we may use all cores."""

    count: int
    bindable: bool


def available(system: Path = _SYSTEM) -> Cores:
    """The cores left by the affinity mask, the container quota and hyperthreading."""
    allowed = os.sched_getaffinity(0)
    siblings = {_siblings(system, cpu) for cpu in allowed}
    quota = _quota(system)
    count = len(siblings) if quota is None else min(len(siblings), max(1, math.ceil(quota)))
    # mpirun sees the whole machine, not our mask or quota: pinning within a part of it would collide.
    return Cores(count, bindable=quota is None and len(allowed) == os.cpu_count())


def shares(processes: int, system: Path = _SYSTEM) -> list[set[int]] | None:
    """The CPUs for each of several processes of this host: equal shares of its cores, each with all its threads.

    None if they should not be bound: one alone, more than cores, or if others may have chosen some of the same cores.
    """
    cores = available(system)
    share = cores.count // processes if processes else 0
    if processes == 1 or share < 1 or not cores.bindable:
        return None
    threads: dict[str, set[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        threads.setdefault(_siblings(system, cpu), set()).add(cpu)
    each = list(threads.values())
    return [set().union(*each[place * share : (place + 1) * share]) for place in range(processes)]


def _siblings(system: Path, cpu: int) -> str:
    """Identifies the core of the hardware thread `cpu`."""
    try:
        return (system / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def _quota(system: Path) -> float | None:
    """The CPU quota of the container, in cores; None if unlimited. Checks cgroup version 2, then version 1."""
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
    """The thread variables to set for each of several ranks on a host, unless the user has set them.

    By default TensorFlow starts as many threads as the host has cores, so n ranks would start n times too many.

    Args:
        share: Cores for each rank.
        environment: What the user has set.
    """
    threads = max(1, share)
    return {name: str(threads) for name in _THREADS if not environment.get(name)}
