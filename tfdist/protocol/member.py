"""The messages between a rank and its supervisor.

MPI_Init waits for all ranks, even for one that has died: no rank can continue without another until all have joined.
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

# The rank has joined the others, made its first commit, timed out waiting for others, leaves because all were asked to,
# or leaves alone because of a signal. And: it exits normally, with tfdist shut down or abandoned.
JOINED, COMMITTED, STALLED, LEFT, RETIRED, PARTED = b"j", b"c", b"s", b"l", b"r", b"p"
# The first process of a rank takes this from the pipe of the supervisor.
TOKEN = b"*"
# Exit status of a rank that leaves: EX_TEMPFAIL of sysexits.h, "try again later".
LEFT_STATUS = 75


def variables(descriptor: int, news: int, folder: Path | None, leave: Path | None) -> dict[str, str]:
    """The variables by which a rank finds the pipes to and from its supervisor, the folder for commits, and the file
    that appears when it must leave.
    """
    found = {FOLDER_VARIABLE: folder, LEAVE_VARIABLE: leave}
    named = {name: str(path) for name, path in found.items() if path is not None}
    pipes = {PIPE_VARIABLE: descriptor, NEWS_VARIABLE: news}
    return {name: f"{number}:{os.fstat(number).st_ino}" for name, number in pipes.items()} | named


def must_leave(environment: Mapping[str, str] | None = None) -> bool:
    """Whether all ranks must leave at a commit, because they are being restarted."""
    path = _own(environment).get(LEAVE_VARIABLE)
    return path is not None and os.path.exists(path)


def commits(environment: Mapping[str, str] | None = None) -> Path | None:
    """The folder for the job's commits on this host; None if there is none."""
    folder = _own(environment).get(FOLDER_VARIABLE)
    return Path(folder) if folder else None


def backup(environment: Mapping[str, str] | None = None) -> Path | None:
    """The folder on a disk for the newest commit of a job that ended before its training; None if there is none."""
    folder = _own(environment).get(BACKUP_VARIABLE)
    return Path(folder) if folder else None


def report(event: bytes, environment: Mapping[str, str] | None = None) -> bool:
    """Reports an event to the supervisor, if there is one. False if its pipe is not available.

    Args:
        event: One of the constants above.
        environment: The variables of this process; default `os.environ`, if this process is a rank.
    """
    number, inode = _pipe(PIPE_VARIABLE, environment)
    if not number:
        return True
    try:
        return _is_there(int(number), inode) and os.write(int(number), event) == 1
    except OSError:
        return False


def is_first() -> bool:
    """Whether no process has been this rank before; called once, by the process about to become it."""
    number, inode = _pipe(NEWS_VARIABLE, None)
    if not number or not _is_there(int(number), inode):
        return True
    return bool(select.select([int(number)], [], [], 0)[0]) and os.read(int(number), len(TOKEN)) == TOKEN


def ended_ranks() -> Iterator[int]:
    """Yields the ranks whose processes have exited without shutdown, as reported by the launcher.

    Waits for the next one; ends if there is no launcher, or it is gone.
    """
    number, inode = _pipe(NEWS_VARIABLE, None)
    if number and _is_there(int(number), inode):
        with os.fdopen(os.dup(int(number))) as news:
            yield from map(int, news)


def _own(environment: Mapping[str, str] | None) -> Mapping[str, str]:
    return ancestry.own_environment() if environment is None else environment


def _pipe(name: str, environment: Mapping[str, str] | None) -> tuple[str, str]:
    """The descriptor number and the inode of a pipe; both empty if there is none."""
    number, _, inode = _own(environment).get(name, "").partition(":")
    return (number, inode) if number.isdecimal() and inode.isdecimal() else ("", "")


def _is_there(descriptor: int, inode: str) -> bool:
    """A program in between may have closed it, and its number may now belong to something else."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return False
    return stat.S_ISFIFO(found.st_mode) and found.st_ino == int(inode)
