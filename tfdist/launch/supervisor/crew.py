"""Starts the supervisors of all ranks of one host, in the place of mpirun's daemon, and ends when they have ended."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tfdist.launch.host.core import shares
from tfdist.launch.start.direct import Direct
from tfdist.protocol.member import NEWCOMER_VARIABLE
from tfdist.system.process import signal_pipe

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True)
class Crew:
    """The ranks of one host: `count` of the job's `size`, from `first` on.

    `places` are their numbers within the host if they are newcomers: others may have run there before, and run there
    still.
    """

    first: int
    count: int
    size: int
    places: tuple[int, ...] = ()

    @classmethod
    def parse(cls, words: Sequence[str]) -> Crew:
        first, count, size, *places = map(int, words)
        return cls(first, count, size, tuple(places))

    def words(self) -> list[str]:
        """What `parse` reads."""
        return list(map(str, (self.first, self.count, self.size, *self.places)))

    def variables(self, number: int) -> dict[str, str]:
        """What a rank's supervisor finds in its environment."""
        local = (self.places[number], max(self.places) + 1) if self.places else (number, self.count)
        place = (self.first + number, self.size, *local)
        found = dict(zip(Direct.place_variables, map(str, place), strict=True))
        return found | {NEWCOMER_VARIABLE: "1"} if self.places else found


def run(crew: Crew, supervise: Callable[[Mapping[str, str]], int], environment: Mapping[str, str]) -> int:
    """Forks one process for each rank, which calls `supervise` with its environment; waits for all of them.

    SIGTERM and SIGINT are passed on. Must be called by a process with one thread.

    Returns:
        The highest of their statuses.
    """
    wake = signal_pipe((*_SIGNALS, signal.SIGCHLD))
    cores = None if crew.places else shares(crew.count)  # newcomers go where others leave room
    parent = os.getppid()
    running = set()
    for number in range(crew.count):
        child = os.fork()
        if child == 0:
            _forget(wake)
            if cores is not None:
                os.sched_setaffinity(0, cores[number])
            status = supervise({**environment, **crew.variables(number)})
            sys.stderr.flush()
            # Python's normal exit takes 15 ms, and the ranks that continue without this one would wait for it.
            os._exit(status)
        running.add(child)
    return _wait(running, wake, parent)


def _wait(running: set[int], wake: int, parent: int) -> int:
    highest = 0
    while running:
        for signum in os.read(wake, 64):
            if signum in (signal.SIGTERM, signal.SIGINT):
                _send(running, signum)
            elif signum == signal.SIGHUP and os.getppid() != parent:
                _send(running, signal.SIGTERM)
        for process, status in _ended():
            if process in running:  # and not an orphan that was adopted
                running.remove(process)
                code = os.waitstatus_to_exitcode(status)
                highest = max(highest, code if code >= 0 else 128 - code)
    return highest


def _send(processes: set[int], signum: int) -> None:
    for process in processes:
        os.kill(process, signum)


def _ended() -> list[tuple[int, int]]:
    found = []
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            found.append(ended)
    return found


def _forget(wake: int) -> None:
    """A forked process has the signal handlers of its parent, and would write into its pipe."""
    signal.set_wakeup_fd(-1)
    os.close(wake)
    for signum in (*_SIGNALS, signal.SIGCHLD):
        signal.signal(signum, signal.SIG_DFL)
