"""Finds the ranks of a job that run on this machine, from /proc."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from tfdist.protocol import member
from tfdist.system.process import descendants, parents
from tfdist.system.rank import job_place


def ranks_below(root: int) -> dict[int, int]:
    """The process of each rank among the descendants of a process, by rank.

    It is the one that a supervisor has started: what it starts itself has the same variables, but so has its parent.
    """
    environments = {process: _environment(process) for process in descendants(root)}
    parent = parents()
    found = {}
    for process, variables in environments.items():
        started = variables.get(member.PIPE_VARIABLE)
        if started and environments.get(parent.get(process, 0), {}).get(member.PIPE_VARIABLE) != started:
            rank = job_place.rank(variables)
            if rank.isdecimal():
                found[int(rank)] = process
    return found


def _environment(process: int) -> Mapping[str, str]:
    """What a process was started with; empty if it has ended."""
    with contextlib.suppress(OSError):
        entries = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
        pairs = (entry.decode(errors="surrogateescape").partition("=") for entry in entries)
        return {name: value for name, _, value in pairs}
    return {}
