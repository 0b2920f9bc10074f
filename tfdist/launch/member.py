"""What a rank of an elastic job tells its supervisor, and is told by it. What follows is not decided here.

MPI_Init waits for all ranks, also for one that has died before: nobody can go on without a rank until all have joined.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

PIPE_VARIABLE = "TFDIST_MEMBER_PIPE"
FOLDER_VARIABLE = "TFDIST_COMMITS"
LEAVE_VARIABLE = "TFDIST_LEAVE"
BACKUP_VARIABLE = "TFDIST_COMMITS_BACKUP"

# It has joined the others, has made its first commit, has waited for others in vain, leaves as all were asked to, or
# leaves the others alone because a signal told it to end.
JOINED, COMMITTED, STALLED, LEFT, RETIRED = b"j", b"c", b"s", b"l", b"r"
# The exit status of a rank that leaves: EX_TEMPFAIL of sysexits.h, "try again later".
LEFT_STATUS = 75


def variables(descriptor: int, folder: Path | None, leave: Path | None) -> dict[str, str]:
    """What leads a rank to the writing end of the supervisor's pipe, to the files for commits, and to the one that
    appears when it is to leave.
    """
    found = {FOLDER_VARIABLE: folder, LEAVE_VARIABLE: leave}
    named = {name: str(path) for name, path in found.items() if path is not None}
    return {PIPE_VARIABLE: f"{descriptor}:{os.fstat(descriptor).st_ino}", **named}


def must_leave(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether all ranks are to leave at a commit, because others start in their place."""
    path = environment.get(LEAVE_VARIABLE)
    return path is not None and os.path.exists(path)


def commits(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The folder on this host in which the commits of the job are kept; None without one."""
    folder = environment.get(FOLDER_VARIABLE)
    return Path(folder) if folder else None


def backup(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The folder on a disk for the newest commit of a job that has ended before its training has; None without one."""
    folder = environment.get(BACKUP_VARIABLE)
    return Path(folder) if folder else None


def report(event: bytes, environment: Mapping[str, str] = os.environ) -> bool:
    """Tells the supervisor, if there is one. False if its pipe has not come this far.

    Args:
        event: One of the above.
        environment: The variables of this process.
    """
    number, _, inode = environment.get(PIPE_VARIABLE, "").partition(":")
    if not (number.isdecimal() and inode.isdecimal()):
        return True
    try:
        # Whoever stands between may have closed it, and something else may have its number now.
        found = os.fstat(int(number))
        return stat.S_ISFIFO(found.st_mode) and found.st_ino == int(inode) and os.write(int(number), event) == 1
    except OSError:
        return False
