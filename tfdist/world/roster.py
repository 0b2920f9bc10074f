"""What the launcher reports to this rank: the lists of ranks, which processes have ended, and when to meet or leave."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Sequence

from tfdist import errors
from tfdist.native import library
from tfdist.protocol.epoch import Epoch
from tfdist.protocol.member import Gone, Meet, News, Report, Retire

# The system's limit for one wait.
_LONGEST_S = 1e6


class Roster:
    """Reads the reports in a thread of its own, and makes waits for processes that have ended fail.

    Args:
        news: The reports. Without a supervisor there are none.
    """

    def __init__(self, news: News) -> None:
        self._news = news
        # Guards all below; notified of each report.
        self._changed = threading.Condition()
        self._epoch: Epoch | None = None
        self._gone: dict[int, None] = {}
        # After which list all ranks meet others at a commit.
        self._meets_after: int | None = None
        self._retires = False
        # The process of each rank of the engine; None while there is no engine.
        self._processes: Sequence[int] | None = None
        self._is_over = not news.is_open
        if news.is_open:
            threading.Thread(target=self._run, name="tfdist-launcher", daemon=True).start()

    @property
    def number(self) -> int:
        """The number of the last list of ranks; 0 for none."""
        with self._changed:
            return 0 if self._epoch is None else self._epoch.number

    @property
    def meets(self) -> bool:
        """Whether the ranks of the last list are to meet others at their next commit."""
        with self._changed:
            return self._epoch is not None and self._meets_after == self._epoch.number

    @property
    def retires(self) -> bool:
        """Whether this rank is to leave at its next commit."""
        with self._changed:
            return self._retires

    def await_epoch(self, after: int, timeout_s: float, *, all_must_come: bool) -> Epoch:
        """The list of ranks that follows the one with this number.

        Args:
            after: The number; 0 for the first list.
            timeout_s: How long to wait.
            all_must_come: Whether there will be no list after a process has ended.

        Raises:
            PeerLostError: If there is none in this time, or there will be none.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while self._epoch is None or self._epoch.number <= after:
                if all_must_come and self._gone:
                    raise errors.PeerLostError(
                        f"rank {next(iter(self._gone))} has ended before it called tfdist.init(), for which this rank "
                        "waits. Call it on every rank."
                    )
                if self._is_over:
                    raise errors.PeerLostError(
                        "tfdistrun, or the supervisor of this rank, is gone. See the launcher's output."
                    )
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise errors.PeerLostError(_late(timeout_s, after))
                self._changed.wait(min(_LONGEST_S, left_s))
            return self._epoch

    def follow(self, processes: Sequence[int]) -> None:
        """The engine has these processes, by rank: those that end are lost to it."""
        with self._changed:
            self._processes = processes
            for process in self._gone:
                self._note(process)

    def rest(self) -> None:
        """There is no engine: its ranks change."""
        with self._changed:
            self._processes = None

    def gone_of(self, processes: Collection[int]) -> list[int]:
        """Those of these processes that have ended."""
        with self._changed:
            return [process for process in self._gone if process in processes]

    def _run(self) -> None:
        while report := self._news.wait():
            with self._changed:
                self._take(report)
                self._changed.notify_all()
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _take(self, report: Report) -> None:
        if isinstance(report, Gone):
            self._gone[report.process] = None
            self._note(report.process)
        elif isinstance(report, Epoch):
            self._epoch = report
        elif isinstance(report, Meet):
            self._meets_after = report.after
        else:
            assert isinstance(report, Retire)
            self._retires = True

    def _note(self, process: int) -> None:
        if self._processes is not None and process in self._processes:
            library.load().tfdist_note_ended(list(self._processes).index(process))


def _late(timeout_s: float, after: int) -> str:
    if after:
        return (
            f"tfdistrun has not announced which ranks continue within {timeout_s:g} s: one of them may hang. See the "
            "launcher's output."
        )
    return (
        f"tfdistrun has not announced the other ranks within {timeout_s:g} s: not all of them have called "
        "tfdist.init(). Call it on every rank, before any work that only one rank does."
    )
