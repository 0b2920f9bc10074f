"""The messages between a rank and its supervisor, one line each.

MPI_Init waits for all ranks, even for one that has died: no rank can continue without another until all have joined.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tfdist.protocol.epoch import Epoch
from tfdist.system.network.endpoint import Address, text
from tfdist.system.rank import ancestry
from tfdist.system.terminal.readiness import readable

PIPE_VARIABLE = "TFDIST_MEMBER_PIPE"
NEWS_VARIABLE = "TFDIST_MEMBER_NEWS"
LISTEN_VARIABLE = "TFDIST_LISTEN_ADDRESS"
FOLDER_VARIABLE = "TFDIST_COMMITS"
LEAVE_VARIABLE = "TFDIST_LEAVE"
BACKUP_VARIABLE = "TFDIST_COMMITS_BACKUP"
NEWCOMER_VARIABLE = "TFDIST_NEWCOMER"

# The rank has joined the others, made its first commit, timed out waiting for others, leaves because all were asked to,
# or leaves alone because it was told to. And: it exits normally, with tfdist shut down or abandoned.
JOINED, COMMITTED, STALLED, LEFT, RETIRED, PARTED = b"j\n", b"c\n", b"s\n", b"l\n", b"r\n", b"p\n"
# It is in a training that new processes may join at a commit. And: it no longer is, or never was.
OPEN, CLOSED = b"o\n", b"x\n"
# A rank without MPI listens for the others: the number of the last epoch that it knows and its address follow.
LISTENING = b"a"
# The first process of a rank takes this from the pipe of the supervisor.
TOKEN = b"*"
_EPOCH = b"{"
# The launcher asks this rank to meet the others at its next commit, after the list with this number; to leave there.
_MEET, _RETIRE = b"m", b"r"
# A pipe: the rank's descriptor, the inode, the supervisor's process, its descriptor of the other end.
_PIPE = re.compile(r"(\d+):(\d+):(\d+):(\d+)")
_READ_BYTES = 1 << 16
# What the system takes as the time of one wait.
_LONGEST_S = 1e6
# Exit status of a rank that leaves: EX_TEMPFAIL of sysexits.h, "try again later".
LEFT_STATUS = 75


@dataclass(frozen=True)
class Gone:
    """A process of the job has ended although others may wait for it, as reported by the launcher."""

    process: int


@dataclass(frozen=True)
class Meet:
    """At their next commit all ranks meet others; counts only until the list of ranks after that number."""

    after: int


@dataclass(frozen=True)
class Retire:
    """This rank leaves at its next commit; the others continue."""


Report = Gone | Epoch | Meet | Retire


class News:
    """What the launcher reports to this rank, in order. For one thread at a time.

    Args:
        descriptor: The end of a pipe; None if there is no supervisor.
    """

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self._buffer = b""

    @property
    def is_open(self) -> bool:
        """Whether there is a supervisor that may still report something."""
        return self._descriptor is not None

    def wait(self, timeout_s: float | None = None) -> Report | None:
        """The next report; None if there is none in this time, or there will be none any more."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            left = None if deadline is None else min(_LONGEST_S, max(0.0, deadline - time.monotonic()))
            if self._descriptor is None or not readable(self._descriptor, left):
                return None
            data = os.read(self._descriptor, _READ_BYTES)
            if not data:
                self._descriptor = None
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        if line.startswith(_EPOCH):
            return Epoch.parse(line)
        if line.startswith(_MEET):
            return Meet(int(line.removeprefix(_MEET)))
        return Retire() if line == _RETIRE else Gone(int(line))


def gone(process: int) -> bytes:
    """The line that reports this to a rank."""
    return b"%d\n" % process


def meet(after: int) -> bytes:
    """The same, of `Meet`."""
    return _MEET + b"%d\n" % after


def retire() -> bytes:
    """The same, of `Retire`."""
    return _RETIRE + b"\n"


@dataclass(frozen=True)
class Pipe:
    """A pipe between a rank and its supervisor.

    Attributes:
        rank: The descriptor of the rank's end.
        supervisor: That of the other end.
    """

    rank: int
    supervisor: int

    def text(self) -> str:
        """For a variable of the rank, in the supervisor."""
        return f"{self.rank}:{os.fstat(self.rank).st_ino}:{os.getpid()}:{self.supervisor}"


def variables(reports: Pipe, news: Pipe, folder: Path | None, leave: Path | None, address: str = "") -> dict[str, str]:
    """The variables by which a rank finds its supervisor and its own place.

    Args:
        reports: The pipe to the supervisor.
        news: The pipe from it.
        folder: For commits; may be None.
        leave: The file that appears when the rank must leave; may be None.
        address: Where the rank listens if there is no MPI.
    """
    found = {FOLDER_VARIABLE: folder, LEAVE_VARIABLE: leave, LISTEN_VARIABLE: address or None}
    named = {name: str(path) for name, path in found.items() if path is not None}
    return {PIPE_VARIABLE: reports.text(), NEWS_VARIABLE: news.text()} | named


def is_newcomer(environment: Mapping[str, str] | None = None) -> bool:
    """Whether this rank was started while others trained, which it joins."""
    return bool(_own(environment).get(NEWCOMER_VARIABLE))


def must_leave(environment: Mapping[str, str] | None = None) -> bool:
    """Whether all ranks must leave at a commit, because they are being restarted."""
    path = _own(environment).get(LEAVE_VARIABLE)
    return path is not None and os.path.exists(path)


def commits(environment: Mapping[str, str] | None = None) -> Path | None:
    """The folder for the job's commits on this host; None if there is none."""
    folder = _own(environment).get(FOLDER_VARIABLE)
    return Path(folder) if folder else None


def backup(environment: Mapping[str, str] | None = None) -> str | None:
    """The folder on a disk, or the address in a store, for the newest commit of a job that ended before its training.

    None if there is none.
    """
    return _own(environment).get(BACKUP_VARIABLE) or None


def report(event: bytes, environment: Mapping[str, str] | None = None) -> bool:
    """Reports an event to the supervisor, if there is one. False if its pipe is not available.

    Args:
        event: One of the constants above.
        environment: The variables of this process; default `os.environ`, if this process is a rank.
    """
    source = _own(environment)
    if not _PIPE.fullmatch(source.get(PIPE_VARIABLE, "")):
        return True
    descriptor = _open(source[PIPE_VARIABLE], os.O_WRONLY)
    if descriptor is None:
        return False
    try:
        return os.write(descriptor, event) == len(event)
    except OSError:
        return False
    finally:
        os.close(descriptor)


def listens(epoch: int, at: Address) -> bool:
    """Reports where this rank listens after that epoch (0: the first one is to come), as `report`."""
    return report(LISTENING + f"{epoch} {text(at)}\n".encode())


def listening(line: bytes) -> tuple[int, str]:
    """The epoch and the address of a line of `listens`. Raises ValueError."""
    epoch, _, address = line.removeprefix(LISTENING).decode().partition(" ")
    return int(epoch), address


def listen_address() -> str:
    """The address on which this rank listens; empty if the supervisor has set none."""
    return _own(None).get(LISTEN_VARIABLE, "")


def is_first() -> bool:
    """Whether no process has been this rank before; called once, by the process about to become it."""
    descriptor = _open(_own(None).get(NEWS_VARIABLE, ""), os.O_RDONLY)
    if descriptor is None:
        return True
    try:
        return readable(descriptor) and os.read(descriptor, len(TOKEN)) == TOKEN
    finally:
        os.close(descriptor)


def open_news() -> News:
    """What the launcher reports to this rank from now on."""
    return News(_open(_own(None).get(NEWS_VARIABLE, ""), os.O_RDONLY))


def _own(environment: Mapping[str, str] | None) -> Mapping[str, str]:
    return ancestry.own_environment() if environment is None else environment


def _open(text: str, mode: int) -> int | None:
    """A new descriptor of the rank's end of a pipe; None if there is none.

    A program in between may have closed it, as Python's subprocess does, and its number may now belong to something
    else. Then /proc still has the pipe of the supervisor.
    """
    found = _PIPE.fullmatch(text)
    if found is None:
        return None
    number, inode, process, other = map(int, found.groups())
    with contextlib.suppress(OSError):
        if _is_pipe(number, inode):
            return os.dup(number)
    with contextlib.suppress(OSError):
        opened = os.open(f"/proc/{process}/fd/{other}", mode | os.O_CLOEXEC)
        if _is_pipe(opened, inode):
            return opened
        os.close(opened)
    return None


def _is_pipe(descriptor: int, inode: int) -> bool:
    found = os.fstat(descriptor)
    return stat.S_ISFIFO(found.st_mode) and found.st_ino == inode
