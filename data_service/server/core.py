"""Limits this process to some of its processor cores, leaving the rest to others.

It prefers cores that no other tfdist server on this machine has claimed. A core is claimed by binding an abstract
socket name, which the kernel frees when the process ends.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

from tfdist.errors import ConfigError

_NAME = "\0tfdist-data-service-core-{}"
_TASKS = Path("/proc/self/task")
_kept: list[socket.socket] = []


def available() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0))


def check(cores: int) -> None:
    """Rejects more cores than there are.

    Raises:
        ConfigError: If this process may not use so many.
    """
    if cores > available():
        raise ConfigError(
            f"cores is {cores}, but this process may use only {available()}: the machine has {os.cpu_count()}, and a "
            "container, `taskset` or `numactl` may allow fewer. Give a smaller number, or omit it to use all."
        )


def limit(cores: int) -> tuple[int, ...]:
    """Limits all threads of this process, and those they start, to this many cores.

    Args:
        cores: Number of cores, at least 1.

    Returns:
        The cores chosen.

    Raises:
        ConfigError: If this process may not use so many.
    """
    check(cores)
    mine: list[int] = []
    others: list[int] = []
    for core in sorted(os.sched_getaffinity(0)):
        (mine if len(mine) < cores and _take(core) else others).append(core)
    chosen = (mine + others)[:cores]
    for task in _TASKS.iterdir():
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setaffinity(int(task.name), chosen)
    return tuple(sorted(chosen))


def _take(core: int) -> bool:
    """Claims a core; False if another server has it."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        made.bind(_NAME.format(core))
    except OSError:
        made.close()
        return False
    _kept.append(made)
    return True
