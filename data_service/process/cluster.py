"""An embedded data service: a dispatcher and workers as processes on this machine that end with the trainer."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import subprocess
import sys
import threading
import weakref
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any

from tfdist.data_service.inspection.survey import Survey, survey
from tfdist.data_service.process.autoscale import ScalePolicy
from tfdist.data_service.server.config import DRAIN_TIMEOUT_S
from tfdist.errors import ConfigError, PeerLostError
from tfdist.system.process import kill
from tfdist.system.terminal import descriptor

START_TIMEOUT_S = 120.0
_MANAGER = (sys.executable, "-m", "tfdist.data_service.process.manager")
# What a stop takes: the servers are killed, since whoever reads from them is done.
_STOP_S = 10.0
# Beyond what the manager waits for itself.
_MARGIN_S = 15.0


@dataclass
class _Known:
    """What the manager has reported about the servers."""

    workers: tuple[str, ...] = ()
    failed: dict[str, str] = field(default_factory=dict)


class Cluster:
    """A dispatcher and workers in their own processes, on free ports of the loopback device.

    You need it if the trainer leaves cores of its machine unused. It is ready when the constructor returns. A server
    that dies is restarted at its address, so that a pass over the data completes; the dispatcher resumes running passes
    from its journal. The processes end with the cluster, and with the process that made it, however that ends. The
    servers' output goes to standard error, prefixed with their names. Other machines cannot reach the cluster; other
    users of this machine can, and a dataset is a program: do not use it if you do not trust them.

    Args:
        workers: Number of workers, 1 or more.
        fixed_workers: Whether each worker has a fixed shard, as needed for sharding by "file", "data", "file_or_data"
            and "hint". No worker can be added then.
        autoscale: "MIN:MAX" adds and drains workers automatically, by how long the trainers wait for their data,
            starting with `workers`; a `ScalePolicy` sets more details. None disables autoscaling. Each change is
            reported on standard error. A worker that you drain below MIN is replaced.
        restarts: How often each server may fail within ten minutes; after one more failure it is not restarted.
        start_timeout_s: Seconds within which all servers must be ready.
        drain_timeout_s: Seconds a worker may take to drain.

    Attributes:
        address: "HOST:PORT" for `distribute`.

    Raises:
        ConfigError: If an argument is invalid.
        PeerLostError: If the servers do not start.

    Example:

    ```python
    with tfdist.data_service.Cluster(workers=2) as cluster:
        dataset = tfdist.data_service.distribute(dataset, cluster.address)
        model.fit(dataset)
    ```
    """

    def __init__(
        self,
        workers: int = 2,
        *,
        fixed_workers: bool = False,
        autoscale: str | ScalePolicy | None = None,
        restarts: int = 5,
        start_timeout_s: float = START_TIMEOUT_S,
        drain_timeout_s: float = DRAIN_TIMEOUT_S,
    ) -> None:
        if workers < 1:
            raise ConfigError(f"workers must be 1 or more; received {workers}.")
        if restarts < 0:
            raise ConfigError(f"restarts must be 0 or more; received {restarts}.")
        policy = ScalePolicy.parse(autoscale) if isinstance(autoscale, str) else autoscale
        if policy is not None:
            if not isinstance(policy, ScalePolicy):
                raise ConfigError(f'autoscale must be "MIN:MAX", a ScalePolicy or None; received {autoscale!r}.')
            policy.check_start(workers)
            if fixed_workers:
                raise ConfigError(
                    "autoscale and fixed_workers=True are mutually exclusive, because fixed shards are assigned "
                    "once. Omit one."
                )
        descriptor.fill_closed()
        order = {
            "workers": workers,
            "fixed_workers": fixed_workers,
            "restarts": restarts,
            "start_timeout_s": start_timeout_s,
            "drain_timeout_s": drain_timeout_s,
            "autoscale": None if policy is None else asdict(policy),
        }
        self._patience_s = max(start_timeout_s, drain_timeout_s) + _MARGIN_S
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._answers: dict[int, queue.SimpleQueue[dict[str, Any]]] = {0: queue.SimpleQueue()}
        self._known = _Known()
        self._fixed_workers = fixed_workers
        self._manager = subprocess.Popen(
            _MANAGER,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONSAFEPATH": "1"},
            start_new_session=True,  # Ctrl-C is the trainer's
        )
        self._finalizer = weakref.finalize(self, _end, self._manager, os.getpid())
        threading.Thread(target=_read, args=(self._manager, self._answers, self._known), daemon=True).start()
        self._send(order)
        try:
            found = self._wait(0, start_timeout_s + _MARGIN_S)
        except PeerLostError:
            self.stop()
            raise
        self.address = str(found["ready"])

    @property
    def workers(self) -> tuple[str, ...]:
        """Host and port of the workers that were started and not drained, including those of the autoscaler."""
        return self._known.workers

    @property
    def failed(self) -> dict[str, str]:
        """The servers that failed too often to be restarted, by address, with the last failure of each."""
        return dict(self._known.failed)

    def add_worker(self) -> str:
        """Starts one more worker; running passes use it within seconds.

        If no dataset is being read, or many workers have been drained, it reuses the address of a drained one. Such a
        worker joins the passes that begin after its start.

        Returns:
            Its "HOST:PORT".

        Raises:
            ConfigError: If the workers are fixed, or the maximum of `autoscale` already runs.
            PeerLostError: If it does not start.
        """
        if self._fixed_workers:
            raise ConfigError("a cluster with fixed_workers=True cannot add a worker: its shards are already assigned.")
        return str(self._request(do="add")["worker"])

    def drain(self, worker: str) -> None:
        """Drains a worker: it delivers what it holds, takes no new work, and ends. The others take over its share.

        If it is already draining, for any reason, waits for it; if it has drained, does nothing.

        Args:
            worker: Its "HOST:PORT", as in `workers`.

        Raises:
            ConfigError: If no such worker runs, or it is the last working one.
            PeerLostError: If it has not drained in time, so that elements are lost.
        """
        self._request(do="drain", worker=worker)

    def survey(self, timeout_s: float = 5.0) -> Survey:
        """The current status of each server.

        Raises:
            PeerLostError: If the dispatcher does not answer.
        """
        return survey(self.address, timeout_s)

    def stop(self) -> None:
        """Ends all processes; a second call does nothing."""
        self._finalizer()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _request(self, **fields: str) -> dict[str, Any]:
        with self._lock:
            number = next(self._numbers)
            self._answers[number] = queue.SimpleQueue()
        try:
            with self._lock:
                self._send({"id": number, **fields})
            return self._wait(number, self._patience_s)
        finally:
            with self._lock:
                del self._answers[number]

    def _send(self, fields: dict[str, Any]) -> None:
        assert self._manager.stdin is not None
        try:
            self._manager.stdin.write(json.dumps(fields).encode() + b"\n")
            self._manager.stdin.flush()
        except (OSError, ValueError):
            raise PeerLostError("the embedded data service has ended; make a new Cluster") from None

    def _wait(self, number: int, timeout_s: float) -> dict[str, Any]:
        try:
            answer = self._answers[number].get(timeout=timeout_s)
        except queue.Empty:
            answer = {"error": f"its manager has not answered within {timeout_s:g} s"}
        if "refused" in answer:
            raise ConfigError(str(answer["refused"]))
        if "error" in answer:
            raise PeerLostError(f"the embedded data service: {answer['error']}")
        return answer


def _read(
    manager: subprocess.Popen[bytes],
    answers: dict[int, queue.SimpleQueue[dict[str, Any]]],
    known: _Known,
) -> None:
    """Forwards the manager's answers until it ends, then notifies all waiters. Keeps no Cluster alive."""
    assert manager.stdout is not None
    for line in manager.stdout:
        fields = json.loads(line)
        if "workers" in fields:
            known.workers = tuple(map(str, fields["workers"]))
        if "failed" in fields:
            known.failed[fields["failed"]] = fields["detail"]
            continue
        waiting = answers.get(fields.get("id", 0))  # None: nobody waits any more
        if waiting is not None and ("ready" in fields or "workers" not in fields):
            waiting.put(fields)
    for left in list(answers.values()):
        left.put({"error": "its manager has ended; see standard error"})


def _end(manager: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() != owner:
        return  # a process that the owner has forked
    assert manager.stdin is not None
    with contextlib.suppress(OSError):
        manager.stdin.close()
    try:
        manager.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        kill(manager)  # its servers die with it
