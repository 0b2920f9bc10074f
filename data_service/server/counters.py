"""What a worker reports about the work of its process, and how that process is stopped from taking more.

`TaskMeter` reports what TensorFlow's own server knows; `ServingMeter` what the library counts for the whole process, so
it is for processes with one worker.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Protocol

from tfdist.data_service.server.rate import RateWindow
from tfdist.native import library

# Long enough that bursts do not show, short enough that a person sees what a change does.
_WINDOW_S, _SPACING_S = 10.0, 0.5


class Meter(Protocol):
    """Counts the work of a process and lets it drain."""

    def counters(self) -> dict[str, float]:
        """Name to number; names of counters that only grow end in "_total". "tasks" is the number of running tasks."""

    def drain(self) -> None:
        """Tells the tasks of this process to take no further split; returns immediately."""

    def tick(self) -> None:
        """Called several times a second, to sample rates."""


class TaskMeter:
    """Reports what TensorFlow's own server knows: the number of its tasks. They run to their end by themselves."""

    def __init__(self, tasks: Callable[[], int]) -> None:
        self._tasks = tasks

    def counters(self) -> dict[str, float]:
        """See `Meter`."""
        return {"tasks": self._tasks()}

    def drain(self) -> None:
        """TensorFlow's own tasks cannot be told to stop; a drain waits until they end."""

    def tick(self) -> None:
        """Nothing to sample."""


class ServingMeter(TaskMeter):
    """What the library counts of the datasets that this process serves, and what resources the process uses."""

    def __init__(self, tasks: Callable[[], int]) -> None:
        super().__init__(tasks)
        self._window = RateWindow(_WINDOW_S, _SPACING_S)
        self._lock = threading.Lock()

    def counters(self) -> dict[str, float]:
        """See `Meter`. Values ending in "_per_second", and "cpu_cores", cover the last ten seconds."""
        with self._lock:
            rates = {
                "elements_per_second": self._window.per_second("elements_total"),
                "bytes_per_second": self._window.per_second("bytes_total"),
                "cpu_cores": self._window.per_second("cpu_seconds_total"),
                "full_queues": self._window.mean("full_queues"),
            }
        return super().counters() | _totals() | rates | {"cores": len(os.sched_getaffinity(0))}

    def tick(self) -> None:
        """See `Meter`."""
        with self._lock:
            now_s = time.monotonic()
            if self._window.due(now_s):
                self._window.add(now_s, _totals() | {"full_queues": library.read_serving().waiting_iterators})

    def drain(self) -> None:
        """Tasks under dynamic sharding take no further split of the data; others run to their end."""
        library.set_draining(True)


def _totals() -> dict[str, float]:
    serving = library.read_serving()
    return {
        "elements_total": serving.elements,
        "bytes_total": serving.bytes,
        "busy_seconds_total": serving.busy_ns / 1e9,
        "splits_total": serving.splits,
        "cpu_seconds_total": time.process_time(),
    }
