"""What a dispatcher's journal tells that the dispatcher itself tells nobody: how many datasets there are, and the names
of the jobs that passes belong to, and which have been read. It reads what TensorFlow has written, and writes nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from pathlib import Path

from tfdist.data_service.inspection.dispatcher_client import fields
from tfdist.data_service.server.journal import journal

_LOG = logging.getLogger("tfdist")
# The kinds of records that matter here, by the number of their field in tf.data's message Update.
_DATASET, _PASS, _TASK, _TASK_ENDED, _FORGOTTEN, _JOB = 1, 2, 3, 4, 12, 14
_KINDS = frozenset({_DATASET, _PASS, _TASK, _TASK_ENDED, _FORGOTTEN, _JOB})


class Ledger:
    """Follows a journal; each look reads only what is new. Thread safe.

    Args:
        work_dir: The dispatcher's.
    """

    def __init__(self, work_dir: str) -> None:
        self._work_dir = work_dir
        self._lock = threading.Lock()
        self._complaint = ""
        self._ends: dict[Path, int] = {}
        self._datasets: set[bytes] = set()
        self._jobs: dict[int, str] = {}
        self._passes: dict[int, tuple[str, int]] = {}
        self._tasks: dict[int, int] = {}  # the pass of each task that has not ended
        self._left: dict[int, int] = {}  # for each pass that had a task, how many have not ended

    def look(self) -> tuple[int, Mapping[int, tuple[str, int]]]:
        """The number of registered datasets; and, by the number of each pass that is not forgotten, the name of its job
        and its number in that job. While the journal cannot be read they are those of the last look, and the log says
        so once.
        """
        with self._lock:
            try:
                for path in journal.files(self._work_dir):
                    self._ends[path] = self._follow(path, self._ends.get(path, 0))
                self._complaint = ""
            except OSError as error:
                if self._complaint != str(error):
                    _LOG.warning("data service: the journal cannot be read, so new jobs have no name: %s", error)
                self._complaint = str(error)
            return len(self._datasets), dict(self._passes)

    @property
    def ended(self) -> frozenset[int]:
        """The numbers of the passes, as of the last look, whose tasks have all ended: who joins one gets nothing."""
        with self._lock:
            return frozenset(number for number, left in self._left.items() if left == 0)

    @property
    def size_bytes(self) -> int:
        """Bytes of the journal at the last look."""
        with self._lock:
            return sum(self._ends.values())

    def _follow(self, path: Path, start: int) -> int:
        end = start
        for record, stop in journal.records(path, start):
            end = stop
            if record and record[0] >> 3 in _KINDS:  # most are parts of the data, and cost no more than this
                ((kind, update),) = fields(record)
                if isinstance(update, bytes):
                    self._note(kind, dict(fields(update)))
        return end

    def _note(self, kind: int, update: dict[int, int | bytes]) -> None:
        first = update.get(1, 0)
        if kind == _DATASET and isinstance(first, bytes):
            self._datasets.add(first)
        elif isinstance(first, bytes):
            return
        elif kind == _JOB:
            name = update.get(2, b"")
            self._jobs[first] = name.decode(errors="replace") if isinstance(name, bytes) else ""
        elif kind == _PASS:
            job, repetition = (value if isinstance(value := update.get(number, 0), int) else 0 for number in (2, 3))
            self._passes[first] = (self._jobs.get(job, ""), repetition)
        elif kind == _TASK:
            self._add_task(first, update.get(2, 0))
        elif kind == _TASK_ENDED and first in self._tasks:
            self._left[self._tasks.pop(first)] -= 1
        elif kind == _FORGOTTEN:
            self._passes.pop(first, None)
            self._left.pop(first, None)
            self._tasks = {task: number for task, number in self._tasks.items() if number != first}

    def _add_task(self, number: int, of: int | bytes) -> None:
        if isinstance(of, int):
            self._tasks[number] = of
            self._left[of] = self._left.get(of, 0) + 1
