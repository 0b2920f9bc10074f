"""What only a dispatcher's journal reveals: the number of datasets, the job name of each pass, and which passes have
been read to the end. Reads what TensorFlow wrote; writes nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from tfdist.data_service.inspection import message
from tfdist.data_service.server.journal import journal

_LOG = logging.getLogger("tfdist")
# The kinds of records that matter here, of tf.data's message Update, under the names of its .proto file.
_MESSAGES = message.classes("""
    message Dataset { string dataset_id = 1; }
    message Job { int64 job_id = 1; string job_name = 2; }
    message Pass { int64 iteration_id = 1; int64 job_id = 2; int64 repetition = 3; }
    message Task { int64 task_id = 1; int64 iteration_id = 2; }
    message Update {
        Dataset register_dataset = 1;
        Pass create_iteration = 2;
        Task create_task = 3;
        Task finish_task = 4;
        Pass garbage_collect_iteration = 12;
        Job create_job = 14;
    }
""")
_KINDS = frozenset(_MESSAGES.Update.DESCRIPTOR.fields_by_number)


class Ledger:
    """Follows a journal; each look reads only what is new. Thread-safe.

    Args:
        work_dir: The dispatcher's work_dir.
    """

    def __init__(self, work_dir: str) -> None:
        self._work_dir = work_dir
        self._lock = threading.Lock()
        self._complaint = ""
        self._ends: dict[Path, int] = {}
        self._datasets: set[str] = set()
        self._jobs: dict[int, str] = {}
        self._passes: dict[int, tuple[str, int]] = {}
        self._tasks: dict[int, int] = {}  # the pass of each task that has not ended
        self._left: dict[int, int] = {}  # for each pass that had a task, how many have not ended

    def look(self) -> tuple[int, Mapping[int, tuple[str, int]]]:
        """The number of registered datasets; and for each pass still known, by its number, the name of its job and its
        number within that job. While the journal cannot be read, returns the values of the last look and logs that
        once.
        """
        with self._lock:
            try:
                for path in journal.files(self._work_dir):
                    for record, end in journal.records(path, self._ends.get(path, 0)):
                        self._ends[path] = end
                        if record and record[0] >> 3 in _KINDS:  # most are parts of the data, and cost no more
                            ((kind, update),) = _MESSAGES.Update.FromString(record).ListFields()
                            self._note(kind.name, update)
                self._complaint = ""
            except (OSError, DecodeError) as error:
                if self._complaint != str(error):
                    _LOG.warning("data service: the journal cannot be read, so new jobs have no name: %s", error)
                self._complaint = str(error)
            return len(self._datasets), dict(self._passes)

    @property
    def ended(self) -> frozenset[int]:
        """The numbers of the passes whose tasks had all ended at the last look: a trainer that joins one gets
        nothing.
        """
        with self._lock:
            return frozenset(number for number, left in self._left.items() if left == 0)

    @property
    def size_bytes(self) -> int:
        """Bytes of the journal at the last look."""
        with self._lock:
            return sum(self._ends.values())

    def _note(self, kind: str, update: Any) -> None:
        if kind == "register_dataset":
            self._datasets.add(update.dataset_id)
        elif kind == "create_job":
            self._jobs[update.job_id] = update.job_name
        elif kind == "create_iteration":
            self._passes[update.iteration_id] = (self._jobs.get(update.job_id, ""), update.repetition)
        elif kind == "create_task":
            self._tasks[update.task_id] = update.iteration_id
            self._left[update.iteration_id] = self._left.get(update.iteration_id, 0) + 1
        elif kind == "finish_task" and update.task_id in self._tasks:
            self._left[self._tasks.pop(update.task_id)] -= 1
        elif kind == "garbage_collect_iteration":
            self._passes.pop(update.iteration_id, None)
            self._left.pop(update.iteration_id, None)
            self._tasks = {task: of for task, of in self._tasks.items() if of != update.iteration_id}
