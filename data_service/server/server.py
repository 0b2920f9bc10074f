"""The two servers of the data service, as context managers in this process. `supervisor` runs them as processes."""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import service_config_pb2

from tfdist import __version__
from tfdist.data_service.inspection.address import ServiceAddress
from tfdist.data_service.inspection.control_client import accepts
from tfdist.data_service.inspection.dispatcher_client import DispatcherClient
from tfdist.data_service.inspection.handshake import check_versions, wait_for
from tfdist.data_service.inspection.status import DISPATCHER, DRAINED, DRAINING, READY, STARTING, WORKER, Status
from tfdist.data_service.inspection.survey import look, meet
from tfdist.data_service.inspection.wait_report import TrainerWait
from tfdist.data_service.server import core, drain_request, loopback, port, work_dir
from tfdist.data_service.server.config import DRAIN_TIMEOUT_S, DispatcherConfig, WorkerConfig
from tfdist.data_service.server.control import ControlServer, Source
from tfdist.data_service.server.counters import Meter, TaskMeter
from tfdist.data_service.server.journal import journal
from tfdist.data_service.server.journal.ledger import Ledger
from tfdist.data_service.server.journal.retirement import Caretaker
from tfdist.data_service.server.wait_book import WaitBook
from tfdist.data_service.source import row_reader
from tfdist.errors import ConfigError, PeerLostError, TfdistError
from tfdist.native import adapter

_LOG = logging.getLogger("tfdist")
OPEN = (
    "%s: this %s listens on every interface without authentication or encryption and runs the programs it receives. "
    "Use it on a private network only."
)
CUT = (
    "the journal %s ended in the middle of a record, as happens when a dispatcher is killed while writing: removed "
    "the last %d bytes, from byte %d on. No client had been told of them."
)
UNCHECKED = (
    "the dispatcher at %s has a work_dir but this worker sets none. The worker reads datasets from that path if it "
    "exists here, unverified: a different folder at that path would yield other datasets. Set --work-dir if this "
    "machine mounts it."
)
WAITING = (
    "the worker at %s has tasks of a dispatcher at %s that is gone. Stopping it would make TensorFlow wait for them, "
    "so its port stays open until this process ends."
)
_PROTOCOL = "grpc"
_HEARTBEAT_MS = 1000
# How often a dispatcher looks for jobs without trainers, in the time after which it clears them away. TensorFlow looks
# every ten minutes only, which may be longer than a worker has to drain: what it holds of endless data would count as
# lost though nobody wants it.
_UNREAD_CHECKS = 10
_CALL_S = 2.0
# The newest; a status stays small whatever the journal holds.
_MOST_PASSES = 1000
_POLL_S = 0.1
# How long a worker that has drained waits for its dispatcher to take note.
_FAREWELL_S = 10.0


class _Server:
    """Starts in the constructor; ends with `stop` or the context. Cannot be restarted."""

    def __init__(self, role: str, config: DispatcherConfig | WorkerConfig) -> None:
        self._role, self._config = role, config
        self._state = STARTING
        self._started = time.time()
        self._server: Any = None
        self._ports = port.take(config.port, config.control_port, "127.0.0.1" if config.local else "")
        self.service = ServiceAddress(config.host, self._ports.port, self._ports.control_port)
        self.address = self.service.grpc
        self._control: ControlServer | None = None

    def _listen(self, source: Source, make: Callable[[], Any]) -> None:
        """Starts the control server, then tf.data's; on failure neither keeps running."""
        self._control = ControlServer(self._ports.listener, source)
        try:
            adapter.ops()  # datasets that come here hold them
            row_reader.open_reader()
            self._server = make()
            if self._config.local:
                loopback.close_off(self.service.port)
        except (RuntimeError, tf.errors.OpError) as error:
            self.stop()
            raise ConfigError(f"the {self._role} could not start at {self.address}: {error}") from error
        except TfdistError:
            self.stop()
            raise
        finally:
            self._ports.close()
        if not self._config.local:
            _LOG.warning(OPEN, self.service, self._role)
        self._state = READY

    def status(self) -> Status:
        """The answer to `GET /status`."""
        return Status(
            role=self._role,
            address=self.address,
            control_port=self.service.control_port,
            tfdist=__version__,
            tensorflow=tf.__version__,
            python=platform.python_version(),
            pid=os.getpid(),
            started=self._started,
            state=self._state,
            work_dir_token=self._token(),
            tags=self._tags(),
            counters=self._counters(),
            leaving=self._leaving(),
            trainers=self._trainers(),
            jobs=self._jobs(),
            ended=self._ended(),
            fixed_workers=self._has_fixed_workers(),
        )

    def _only_name(self) -> str:
        """The only host name accepted at the control port; empty if other machines may ask, by any name."""
        return self._config.host if self._config.local else ""

    def _token(self) -> str | None:
        return None

    def _counters(self) -> dict[str, float]:
        return {}

    def _tags(self) -> tuple[str, ...]:
        return ()

    def _leaving(self) -> dict[str, float]:
        return {}

    def _trainers(self) -> tuple[TrainerWait, ...]:
        return ()

    def _jobs(self) -> dict[str, tuple[str, int]]:
        return {}

    def _ended(self) -> tuple[int, ...]:
        return ()

    def _has_fixed_workers(self) -> bool:
        return False

    def join(self) -> None:
        """Blocks until the server has ended."""
        self._server.join()

    def stop(self) -> None:
        """Ends the server; a second call does nothing."""
        if self._control is not None:
            self._control.stop()
            self._control = None
        if self._server is not None:
            self._server._stop()

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Dispatcher(_Server):
    """Assigns work to the workers and directs trainers to them.

    Args:
        config: How to start it.

    Attributes:
        address: "HOST:PORT" for workers and for `distribute`.
        service: The same with the control port.

    Raises:
        ConfigError: If a port is taken, or work_dir cannot be used.

    Example:

    ```python
    with Dispatcher(DispatcherConfig(port=5050)) as dispatcher:
        dispatcher.join()
    ```
    """

    def __init__(self, config: DispatcherConfig) -> None:
        self._work_dir_token = work_dir.provide_token(config.work_dir) if config.work_dir else None
        self._caretaker: Caretaker | None = None
        self._waits = WaitBook()
        self._fixed_workers = bool(config.worker_addresses)
        self._ledger = Ledger(config.work_dir) if config.work_dir and config.fault_tolerant else None
        super().__init__(DISPATCHER, config)
        made = service_config_pb2.DispatcherConfig(
            port=self.service.port,
            protocol=_PROTOCOL,
            work_dir=config.work_dir,
            fault_tolerant_mode=config.fault_tolerant,
            worker_addresses=[ServiceAddress.parse(worker).grpc for worker in config.worker_addresses],
            # Else the tasks of a trainer that was killed stay for ever, and a drain waits for them.
            gc_dynamic_sharding_jobs=True,
            job_gc_timeout_ms=round(config.unread_timeout_s * 1000),
            job_gc_check_interval_ms=max(1, round(config.unread_timeout_s * 1000 / _UNREAD_CHECKS)),
        )
        source = Source(self.status, self._obstacle, waits=self._waits, name=self._only_name())
        self._listen(source, lambda: self._begin(made))
        try:
            self._caretaker = Caretaker(f"localhost:{self.service.port}", config.work_dir)
        except ConfigError:
            self.stop()
            raise

    def _begin(self, made: Any) -> Any:
        """Starts TensorFlow's own server, after repairing its journal if needed."""
        if made.fault_tolerant_mode:
            cut = journal.cut_unfinished(made.work_dir)
            if cut is not None:
                _LOG.warning(CUT, cut.path, cut.removed, cut.at)
        return tf.data.experimental.service.DispatchServer(made)

    def _obstacle(self) -> str:
        return "" if accepts("localhost", self.service.port, _CALL_S) else "gRPC does not accept connections"

    def _token(self) -> str | None:
        return self._work_dir_token

    def _counters(self) -> dict[str, float]:
        workers = self._server._num_workers() if self._server is not None else 0
        told = {"workers": workers, "cpu_seconds_total": time.process_time()}
        if self._ledger is not None:
            told["datasets"], _ = self._ledger.look()
            told["journal_bytes"] = self._ledger.size_bytes
        return told

    def _jobs(self) -> dict[str, tuple[str, int]]:
        if self._ledger is None:
            return {}
        _, passes = self._ledger.look()
        return {str(number): passes[number] for number in sorted(passes)[-_MOST_PASSES:]}

    def _ended(self) -> tuple[int, ...]:
        return tuple(sorted(self._ledger.ended)[-_MOST_PASSES:]) if self._ledger is not None else ()

    def _has_fixed_workers(self) -> bool:
        return self._fixed_workers

    def _leaving(self) -> dict[str, float]:
        return self._caretaker.leaving if self._caretaker is not None else {}

    def _trainers(self) -> tuple[TrainerWait, ...]:
        return self._waits.read(time.monotonic())

    def stop(self) -> None:
        """Ends the server; a second call does nothing."""
        if self._caretaker is not None:
            self._caretaker.stop()
            self._caretaker = None
        super().stop()


class Worker(_Server):
    """Runs datasets and serves their elements to trainers.

    Args:
        config: How to start it.
        meter: Makes the `Meter` of this process from a function that returns the number of running tasks.

    Attributes:
        address: "HOST:PORT" that trainers connect to.
        service: The same with the control port.

    Raises:
        ConfigError: If a port is taken, work_dir is not the dispatcher's, or versions differ.
        PeerLostError: If the dispatcher does not answer in time.

    Example:

    ```python
    with Worker(WorkerConfig("dispatcher:5050", host="worker-0")) as worker:
        worker.join()
    ```
    """

    def __init__(self, config: WorkerConfig, meter: Callable[[Callable[[], int]], Meter] = TaskMeter) -> None:
        self._dispatcher = ServiceAddress.parse(config.dispatcher)
        self._work_dir_token: str | None = None
        self._meter = meter(self._tasks)
        self._drain_asked = threading.Event()
        self._tagged = tuple(config.tags)
        if config.cores is not None:
            _limit(config.cores)
        key = drain_request.read_key(config.key_file) if config.key_file else None
        found = wait_for(self._dispatcher, lambda seconds: meet(self._dispatcher, seconds), config.dispatcher_timeout_s)
        check_versions(found)
        if not config.work_dir and found.status is not None and found.status.work_dir_token is not None:
            _LOG.warning(UNCHECKED, self._dispatcher.grpc)
        if config.work_dir:
            if found.status is None:
                raise ConfigError(
                    f"work_dir cannot be verified because the dispatcher does not report its status: {found.detail}."
                )
            work_dir.check_token(config.work_dir, found.status.work_dir_token)
            self._work_dir_token = found.status.work_dir_token
        self._kept = False
        super().__init__(WORKER, config)
        # TensorFlow's Python class for it has no tags. Not with a dispatcher_timeout_ms: that is the time that a pass
        # waits for a dispatcher that is away.
        made = service_config_pb2.WorkerConfig(
            dispatcher_address=self._dispatcher.grpc,
            worker_address=self.address,
            worker_tags=self._tagged,
            port=self.service.port,
            protocol=_PROTOCOL,
            heartbeat_interval_ms=_HEARTBEAT_MS,
        )
        gatekeeper = drain_request.Gatekeeper(key, self.address, self._started) if key is not None else None
        asked, tick = self._drain_asked.set, self._meter.tick
        source = Source(self.status, self._obstacle, asked, gatekeeper, tick=tick, name=self._only_name())
        self._listen(source, lambda: tf.data.experimental.service.WorkerServer(made))

    def stop(self) -> None:
        """Stops the server; a second call does nothing. Meanwhile reads of Parquet files in this process fail."""
        with row_reader.closed():
            if self._server is not None and not self._kept:
                self._kept = True
                _keep_for_ever(self._server)
                if self._tasks() and not accepts(self._dispatcher.host, self._dispatcher.port, _CALL_S):
                    _LOG.warning(WAITING, self.address, self._dispatcher.grpc)
                    self._server = None
            super().stop()

    def _tasks(self) -> int:
        return int(self._server._num_tasks()) if self._server is not None else 0

    def _obstacle(self) -> str:
        if self._state != READY:
            return self._state
        try:
            with DispatcherClient(self._dispatcher.grpc, _CALL_S) as client:
                known = self.address in client.workers()
        except PeerLostError as error:
            return str(error)
        return "" if known else f"the dispatcher at {self._dispatcher.grpc} does not know this worker"

    def _token(self) -> str | None:
        return self._work_dir_token

    def _tags(self) -> tuple[str, ...]:
        return self._tagged

    def _counters(self) -> dict[str, float]:
        return self._meter.counters()

    def wait_for_request_to_drain(self, timeout_s: float) -> bool:
        """Waits up to `timeout_s` for a `POST /drain`; returns whether one came."""
        return self._drain_asked.wait(timeout_s)

    def drain(self, timeout_s: float = DRAIN_TIMEOUT_S) -> str:
        """Lets the tasks of this worker finish and unregisters it from the dispatcher; call `stop` afterwards.

        Args:
            timeout_s: Seconds the tasks may take.

        Returns:
            What went wrong; empty on success: training continues without this worker and no element is lost.
        """
        deadline = time.monotonic() + timeout_s
        self._state = DRAINING
        self._meter.drain()
        if not self._wait(lambda: self._meter.counters()["tasks"] == 0, deadline):
            return (
                f"{self._meter.counters()['tasks']:.0f} tasks of {self.address} have not ended within {timeout_s:g} "
                "s; the elements they hold are lost. Allow more time (--drain-timeout) or, if nobody reads them any "
                "more, let the dispatcher drop them sooner (--unread-timeout)"
            )
        self._state = DRAINED
        if not self._wait(self._is_noted, time.monotonic() + _FAREWELL_S):
            return (
                f"the dispatcher at {self._dispatcher.control} has not recorded that {self.address} leaves, so the "
                "next pass over the data will wait for it. Start a worker at that address again"
            )
        return ""

    def _is_noted(self) -> bool:
        """Whether the dispatcher knows that this worker leaves, rather than an earlier one at its address.

        Then trainers will not wait for it.
        """
        found = look(self._dispatcher, _CALL_S).status
        return found is not None and found.leaving.get(self.address) == self._started

    def _wait(self, condition: Callable[[], bool], deadline: float) -> bool:
        while not condition():
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)
        return True


def _keep_for_ever(server: Any) -> None:
    """Prevents the destruction of a TensorFlow worker.

    Its destructor waits for its tasks, and a task whose dispatcher is gone retries for an hour. That would happen
    whenever the garbage collector runs, holding the GIL: all threads would freeze, and so would the exit.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))


def _limit(cores: int) -> None:
    """Limits TensorFlow's threads to this many cores.

    Raises:
        ConfigError: If there are fewer, or TensorFlow has already started its threads.
    """
    core.check(cores)
    try:
        tf.config.threading.set_intra_op_parallelism_threads(cores)
        tf.config.threading.set_inter_op_parallelism_threads(cores)
    except RuntimeError:
        raise ConfigError(
            f"cores={cores} must be set before this process uses TensorFlow, but its threads have already started. "
            "Start the worker first, or in its own process."
        ) from None
    chosen = core.limit(cores)
    _LOG.info("data service: this process uses the cores %s", ", ".join(map(str, chosen)))
