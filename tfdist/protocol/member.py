"""The messages between a rank and its supervisor, one line each.

MPI_Init waits for all ranks, even for one that has died: no rank can continue without another until all have joined.
"""

from __future__ import annotations

import os
import select
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tfdist.protocol.epoch import Epoch
from tfdist.protocol.mesh import Address, text
from tfdist.system import ancestry

PIPE_VARIABLE = "TFDIST_MEMBER_PIPE"
NEWS_VARIABLE = "TFDIST_MEMBER_NEWS"
LISTEN_VARIABLE = "TFDIST_LISTEN_ADDRESS"
FOLDER_VARIABLE = "TFDIST_COMMITS"
LEAVE_VARIABLE = "TFDIST_LEAVE"
BACKUP_VARIABLE = "TFDIST_COMMITS_BACKUP"

# The rank has joined the others, made its first commit, timed out waiting for others, leaves because all were asked to,
# or leaves alone because of a signal. And: it exits normally, with tfdist shut down or abandoned.
JOINED, COMMITTED, STALLED, LEFT, RETIRED, PARTED = b"j\n", b"c\n", b"s\n", b"l\n", b"r\n", b"p\n"
# A rank without MPI listens for the others; its address follows.
LISTENING = b"a"
# The first process of a rank takes this from the pipe of the supervisor.
TOKEN = b"*"
_EPOCH = b"{"
_READ_BYTES = 1 << 16
# Exit status of a rank that leaves: EX_TEMPFAIL of sysexits.h, "try again later".
LEFT_STATUS = 75


@dataclass(frozen=True)
class Gone:
    """The process of a rank has exited without shutdown, as reported by the launcher."""

    rank: int


class News:
    """What the launcher reports to this rank, in order. For one thread at a time.

    Args:
        descriptor: The end of a pipe; None if there is no supervisor.
    """

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self._buffer = b""

    def wait(self, timeout_s: float | None = None) -> Gone | Epoch | None:
        """The next report; None if there is none in this time, or there will be none any more."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if self._descriptor is None or not select.select([self._descriptor], [], [], left)[0]:
                return None
            data = os.read(self._descriptor, _READ_BYTES)
            if not data:
                self._descriptor = None
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return Epoch.parse(line) if line.startswith(_EPOCH) else Gone(int(line))


def gone(rank: int) -> bytes:
    """The line that reports this to a rank."""
    return b"%d\n" % rank


def variables(descriptor: int, news: int, folder: Path | None, leave: Path | None, address: str = "") -> dict[str, str]:
    """The variables by which a rank finds its supervisor and its own place.

    Args:
        descriptor: The pipe to the supervisor.
        news: The pipe from it.
        folder: For commits; may be None.
        leave: The file that appears when the rank must leave; may be None.
        address: Where the rank listens if there is no MPI.
    """
    found = {FOLDER_VARIABLE: folder, LEAVE_VARIABLE: leave, LISTEN_VARIABLE: address or None}
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
        return _is_there(int(number), inode) and os.write(int(number), event) == len(event)
    except OSError:
        return False


def listens(at: Address) -> bool:
    """Reports where this rank listens, as `report`."""
    return report(LISTENING + text(at).encode() + b"\n")


def listen_address() -> str:
    """The address on which this rank listens; empty if the supervisor has set none."""
    return _own(None).get(LISTEN_VARIABLE, "")


def is_first() -> bool:
    """Whether no process has been this rank before; called once, by the process about to become it."""
    number, inode = _pipe(NEWS_VARIABLE, None)
    if not number or not _is_there(int(number), inode):
        return True
    return bool(select.select([int(number)], [], [], 0)[0]) and os.read(int(number), len(TOKEN)) == TOKEN


def open_news() -> News:
    """What the launcher reports to this rank from now on."""
    number, inode = _pipe(NEWS_VARIABLE, None)
    return News(os.dup(int(number)) if number and _is_there(int(number), inode) else None)


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
