"""What a rank tells its supervisor, and is told by it. What follows is not decided here.

MPI_Init waits for all ranks, also for one that has died before: nobody can go on without a rank until all have joined.
"""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from tfdist.system import ancestry

PIPE_VARIABLE = "TFDIST_MEMBER_PIPE"
NEWS_VARIABLE = "TFDIST_MEMBER_NEWS"
FOLDER_VARIABLE = "TFDIST_COMMITS"
LEAVE_VARIABLE = "TFDIST_LEAVE"
BACKUP_VARIABLE = "TFDIST_COMMITS_BACKUP"

# It has joined the others, has made its first commit, has waited for others in vain, leaves as all were asked to, or
# leaves the others alone because a signal told it to end. And: it ends in order, with tfdist shut down or given up.
JOINED, COMMITTED, STALLED, LEFT, RETIRED, PARTED = b"j", b"c", b"s", b"l", b"r", b"p"
# What the first process in the place of a rank finds in the pipe from the supervisor, and takes.
TOKEN = b"*"
# The exit status of a rank that leaves: EX_TEMPFAIL of sysexits.h, "try again later".
LEFT_STATUS = 75


def variables(descriptor: int, news: int, folder: Path | None, leave: Path | None) -> dict[str, str]:
    """What leads a rank to the writing end of the supervisor's pipe, to the reading end of another, to the files for
    commits, and to the one that appears when it is to leave.
    """
    found = {FOLDER_VARIABLE: folder, LEAVE_VARIABLE: leave}
    named = {name: str(path) for name, path in found.items() if path is not None}
    pipes = {PIPE_VARIABLE: descriptor, NEWS_VARIABLE: news}
    return {name: f"{number}:{os.fstat(number).st_ino}" for name, number in pipes.items()} | named


def must_leave(environment: Mapping[str, str] | None = None) -> bool:
    """Whether all ranks are to leave at a commit, because others start in their place."""
    path = _own(environment).get(LEAVE_VARIABLE)
    return path is not None and os.path.exists(path)


def commits(environment: Mapping[str, str] | None = None) -> Path | None:
    """The folder on this host in which the commits of the job are kept; None without one."""
    folder = _own(environment).get(FOLDER_VARIABLE)
    return Path(folder) if folder else None


def backup(environment: Mapping[str, str] | None = None) -> Path | None:
    """The folder on a disk for the newest commit of a job that has ended before its training has; None without one."""
    folder = _own(environment).get(BACKUP_VARIABLE)
    return Path(folder) if folder else None


def report(event: bytes, environment: Mapping[str, str] | None = None) -> bool:
    """Tells the supervisor, if there is one. False if its pipe has not come this far.

    Args:
        event: One of the above.
        environment: The variables of this process; default `os.environ`, of a rank alone.
    """
    number, inode = _pipe(PIPE_VARIABLE, environment)
    if not number:
        return True
    try:
        return _is_there(int(number), inode) and os.write(int(number), event) == 1
    except OSError:
        return False


def is_first() -> bool:
    """Whether no process has been this rank before; asked once, by one that is about to be."""
    number, inode = _pipe(NEWS_VARIABLE, None)
    if not number or not _is_there(int(number), inode):
        return True
    return bool(select.select([int(number)], [], [], 0)[0]) and os.read(int(number), len(TOKEN)) == TOKEN


def ended_ranks() -> Iterator[int]:
    """The ranks of the job whose processes have ended without a word, as the launcher says it.

    Waits for the next one; ends at once where no launcher says so, or when it does not any more.
    """
    number, inode = _pipe(NEWS_VARIABLE, None)
    if number and _is_there(int(number), inode):
        with os.fdopen(os.dup(int(number))) as news:
            yield from map(int, news)


def _own(environment: Mapping[str, str] | None) -> Mapping[str, str]:
    return ancestry.own_environment() if environment is None else environment


def _pipe(name: str, environment: Mapping[str, str] | None) -> tuple[str, str]:
    """The number and the inode of a pipe; both empty where there is none."""
    number, _, inode = _own(environment).get(name, "").partition(":")
    return (number, inode) if number.isdecimal() and inode.isdecimal() else ("", "")


def _is_there(descriptor: int, inode: str) -> bool:
    """Whoever stands between may have closed it, and something else may have its number now."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return False
    return stat.S_ISFIFO(found.st_mode) and found.st_ino == int(inode)
