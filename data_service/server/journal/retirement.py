"""Lets training continue without the workers that were drained.

tf.data's dispatcher never forgets a worker. In each later pass over the data it assigns a task to workers that are
gone, and the trainer waits for that task forever. A `Caretaker` completes such tasks on the worker's behalf. It does so
only for workers that have drained, so nothing is lost: they hold nothing, and their share goes to the others.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

from tfdist.data_service.inspection.address import ServiceAddress
from tfdist.data_service.inspection.dispatcher_client import DispatcherClient
from tfdist.data_service.inspection.survey import DEAD, DRAINED, READY, Server, Survey, look, survey
from tfdist.errors import ConfigError, PeerLostError
from tfdist.system.atomic_file import write_atomically

_LOG = logging.getLogger("tfdist")
_PAUSE_S = 1.0
_CALL_S = 2.0
LEAVING_FILE = "tfdist-leaving.json"


def leaving_after(leaving: Mapping[str, float], workers: Iterable[Server]) -> dict[str, float]:
    """The workers that have drained, with their start times, from the previous record and the current survey.

    A worker that is ready again has come back. One that cannot be reached keeps its state: if it dies while draining it
    still holds elements and has not left. The start time distinguishes a worker from earlier ones at the same address:
    the survey may be older than that worker's drain.
    """
    after = dict(leaving)
    for worker in workers:
        if worker.state == READY:
            after.pop(worker.address, None)
        elif worker.state == DRAINED and worker.status is not None:
            after[worker.address] = worker.status.started
    return after


class Caretaker:
    """Watches the workers of a dispatcher in its own thread, until `stop`.

    Args:
        address: "HOST:PORT" of the dispatcher's gRPC.
        work_dir: Where the dispatcher records across restarts which workers have left; None keeps no record.
    """

    def __init__(self, address: str, work_dir: str | None) -> None:
        self._address = address
        self._path = Path(work_dir) / LEAVING_FILE if work_dir else None
        self._leaving = _read(self._path)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tfdist-caretaker", daemon=True)
        self._thread.start()

    @property
    def leaving(self) -> dict[str, float]:
        """The workers that have drained, and the Unix time at which each had started, in seconds."""
        return dict(self._leaving)

    def stop(self) -> None:
        """Ends the thread."""
        self._stopped.set()
        self._thread.join(2 * _CALL_S)

    def _run(self) -> None:
        while not self._stopped.wait(_PAUSE_S):
            try:
                self._look(survey(self._address, _CALL_S))
            except PeerLostError:  # the dispatcher starts or ends
                continue
            except OSError as error:
                _LOG.warning("data service: cannot record which workers have left: %s; retrying", error)

    def _look(self, found: Survey) -> None:
        states = {worker.address: worker.state for worker in found.workers}
        leaving = leaving_after(self._leaving, found.workers)
        if leaving != self._leaving:
            if self._path is not None:
                text = json.dumps(leaving, sort_keys=True)
                write_atomically(self._path, lambda path: path.write_text(text, encoding="utf-8"))
            self._leaving = leaving
        gone = [worker for worker in leaving if states.get(worker) in (DEAD, DRAINED)]
        with DispatcherClient(self._address, _CALL_S) as client:
            for worker in gone:
                tasks = client.tasks(worker)
                # The survey may have taken seconds. A worker that starts at this address answers before it has tasks.
                if tasks and look(ServiceAddress.parse(worker), _CALL_S).state in (DEAD, DRAINED):
                    client.finish(worker, tasks)
                    _LOG.info("data service: completed %d tasks of %s, which has drained", len(tasks), worker)


def _read(path: Path | None) -> dict[str, float]:
    if path is None or not path.exists():
        return {}
    try:
        return {str(worker): float(started) for worker, started in json.loads(path.read_text("utf-8")).items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path} cannot be read: {error}. Remove it if no worker of this service has drained."
        ) from None
