"""Finds the ranks of a job that run on this machine, from /proc."""

from __future__ import annotations

import contextlib
from pathlib import Path

from tfdist.system.process import descendants

_SUPERVISOR = b"/tfdist/launch/supervisor/task.py"
_RANK = b"OMPI_COMM_WORLD_RANK="


def ranks_below(root: int) -> dict[int, int]:
    """The process of each rank among the descendants of a process, by rank."""
    found = {}
    for pid in descendants(root):
        with contextlib.suppress(OSError):  # it has ended
            if Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").endswith(_SUPERVISOR):
                variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                numbers = [int(text.removeprefix(_RANK)) for text in variables if text.startswith(_RANK)]
                below = descendants(pid)
                if numbers and below:
                    found[numbers[0]] = below[0]
    return found
