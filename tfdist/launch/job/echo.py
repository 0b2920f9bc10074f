"""Detects, from its last output lines, whether a rank failed only because another one did."""

from __future__ import annotations

import re
from collections.abc import Sequence

TRACEBACK = "Traceback (most recent call last):"
_KINDS = re.compile(r"(?:tfdist\.errors\.)?(?:MismatchError|PeerLostError|StallError): ")
_OF_TENSORFLOW = re.compile(r"tensorflow\.[\w.]*\.(?:FailedPrecondition|Unavailable|DeadlineExceeded)Error: ")
# What a rank prints if it exits while others are in a collective; there is no traceback.
_LEFT = re.compile(r"ha(?:s|ve) finished \(called shutdown\)")
# What a rank without MPI says when another one has told it of its failure.
_NOTIFIED = re.compile(r"was notified by rank \d+ ")
_LAST_LINES = 10


def distance(tail: Sequence[str]) -> int:
    """How far a rank is from the cause: 0 failed by itself, 1 with an error about other ranks, 2 exited without one, or
    with one of which another rank has told it.

    Args:
        tail: The last lines it printed.
    """
    lines = [line.strip() for line in tail]
    starts = [number for number, line in enumerate(lines) if line == TRACEBACK]
    if not starts:
        return 2 if any(_LEFT.search(line) for line in lines[-_LAST_LINES:]) else 0
    shown = lines[starts[-1] :]
    ours = any(_KINDS.match(line) for line in shown)
    in_graph = any(_OF_TENSORFLOW.match(line) for line in shown) and any("Tfdist" in line for line in shown)
    if not ours and not in_graph:
        return 0
    return 2 if any(_NOTIFIED.search(line) for line in shown) else 1
