"""The data service of a job: starts its manager and receives its reports."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from tfdist.system.process import before_exec

# By name, not imported: its package may use TensorFlow, the launcher may not.
_MANAGER = ("-m", "tfdist.data_service.process.manager")
START_TIMEOUT_S = 120.0
# Killing its servers takes a moment.
_END_S = 3.0


class DataCluster:
    """A dispatcher and workers on this machine, under a manager that exits with this process.

    Args:
        workers: Number of workers; with `autoscale`, the number to start with.
        autoscale: Fewest and most workers, between which the cluster scales automatically; None for a fixed number.
        environment: Their environment variables.
        hear: Called with each report of the manager; {"error": ...} when it has exited. From another thread.
        show: Called with each line of their logs. From another thread.
    """

    def __init__(
        self,
        workers: int,
        autoscale: tuple[int, int] | None,
        environment: Mapping[str, str],
        hear: Callable[[dict[str, Any]], None],
        show: Callable[[str], None],
    ) -> None:
        self._hear, self._show = hear, show
        self._manager = subprocess.Popen(
            [sys.executable, *_MANAGER],
            env={**environment, "PYTHONSAFEPATH": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=before_exec(signal.SIGTERM, own_session=True),  # noqa: PLW1509  (threads start later)
        )
        order = {
            "workers": workers,
            "start_timeout_s": START_TIMEOUT_S,
            "autoscale": None if autoscale is None else {"smallest": autoscale[0], "largest": autoscale[1]},
        }
        for target in (self._read_answers, self._read_log):
            threading.Thread(target=target, name="tfdistrun-data", daemon=True).start()
        assert self._manager.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its exit will be reported
            self._manager.stdin.write(json.dumps(order).encode() + b"\n")
            self._manager.stdin.flush()

    def stop(self) -> None:
        """Tells the manager to stop everything, and gives it time to remove its files; others kill what is left."""
        assert self._manager.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._manager.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._manager.wait(_END_S)

    def _read_answers(self) -> None:
        assert self._manager.stdout is not None
        for line in self._manager.stdout:
            fields = json.loads(line)
            if set(fields) != {"workers"}:  # the workers running now; also in the log
                self._hear(fields)
        self._hear({"error": "its manager has exited"})

    def _read_log(self) -> None:
        assert self._manager.stderr is not None
        for line in self._manager.stderr:
            self._show(line.decode(errors="replace").rstrip())
