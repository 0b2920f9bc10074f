"""Measures how long a dispatcher with many workers and datasets takes to be there again after SIGKILL, and prints it.

    python benchmarks/data_service_restart.py [--workers N] [--datasets N] [--jobs N] [--splits N] [--json FILE]

The dispatcher is the command `tfdist data-service dispatcher`, with its journal. Workers are simulated: heartbeats
under as many addresses of the loopback device, at which nothing listens, as tf.data's workers send them. Datasets are
real, small and all different; each job is read by dynamic sharding and so has a task on every worker. What is timed is
SIGKILL of the whole command and its start, until the dispatcher tells all its workers, and until each of them has had
a heartbeat answered with its tasks.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import tensorflow as tf

from tfdist.data_service.inspection import message
from tfdist.data_service.inspection.address import ServiceAddress
from tfdist.data_service.inspection.control_client import fetch
from tfdist.data_service.inspection.dispatcher_client import DispatcherClient
from tfdist.data_service.server import port
from tfdist.errors import PeerLostError

DEADLINE_S = 300.0
POLL_S = 0.02
IDLE_S = 3.0
MESSAGES = message.classes("""
    message Graph { bytes graph = 1; }
    message NewDataset { Graph dataset = 1; }
    message Dataset { string dataset_id = 1; }
    message Mode { int64 sharding_policy = 1; }
    message NewJob { string dataset_id = 1; Mode processing_mode = 2; string job_name = 3; }
    message Job { int64 job_id = 1; }
    message Pass { int64 iteration_id = 1; }
    message Split {}
    message Heartbeat { string worker_address = 1; int64 worker_uid = 5; }
    message Task { int64 iteration_id = 5; }
    message Heard { repeated Task new_tasks = 1; }
""")
DYNAMIC = MESSAGES.Mode(sharding_policy=1)
ENDLESS = 1 << 40


@dataclass(frozen=True)
class Size:
    """What the dispatcher has when it is killed."""

    workers: int
    datasets: int
    jobs: int
    splits: int


@dataclass(frozen=True)
class Result:
    """Seconds, if not said otherwise.

    Attributes:
        size: What the dispatcher had.
        fill_s: Time it took to bring it there.
        journal_bytes: Size of its journal.
        import_s: From the start of the command until its server has imported TensorFlow.
        start_s: From there until it tells all its workers.
        restart_s: From SIGKILL until then.
        heartbeats_s: One heartbeat of each worker, one after another, each answered with the worker's tasks.
        idle_cores: Cores that the dispatcher keeps busy afterwards by looking at its workers, without any heartbeat.
        memory_bytes: Resident memory of the dispatcher after it.
    """

    size: Size
    fill_s: float
    journal_bytes: int
    import_s: float
    start_s: float
    restart_s: float
    heartbeats_s: float
    idle_cores: float
    memory_bytes: int


class Dispatcher:
    """The command in a session of its own, so that it is killed with all its processes."""

    def __init__(self, work_dir: str, at: int) -> None:
        self.address = ServiceAddress("localhost", at, at + 1)
        self._log = Path(work_dir, "log")
        self._command = [sys.executable, "-m", "tfdist.command", "data-service", "dispatcher", "--port", str(at)]
        self._command += ["--work-dir", work_dir, "--fault-tolerant"]
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def wait(self, workers: int) -> None:
        """Until it tells so many workers."""
        end = time.monotonic() + DEADLINE_S
        with DispatcherClient(self.address.grpc, DEADLINE_S) as client:
            while not self._tells(client, workers):
                if self._process.poll() is not None or time.monotonic() > end:
                    raise SystemExit(f"the dispatcher did not come: {self._log.read_text()[-2000:]}")
                time.sleep(POLL_S)

    def _tells(self, client: DispatcherClient, workers: int) -> bool:
        try:
            return len(client.workers()) >= workers
        except PeerLostError:
            return False

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        if self._process.poll() is None:
            self.kill()


def addresses(workers: int) -> list[str]:
    """Of the loopback device, and of a port at which nothing listens."""
    return [f"127.{1 + number // 62500}.{number // 250 % 250}.{1 + number % 250}:9" for number in range(workers)]


def graphs(number: int) -> Iterator[bytes]:
    """Serialized graphs of so many different datasets; the last one has more elements than anybody reads."""
    graph = tf.compat.v1.GraphDef.FromString(tf.data.Dataset.range(ENDLESS)._as_serialized_graph().numpy())
    (stop,) = (node for node in graph.node if list(node.attr["value"].tensor.int64_val) == [ENDLESS])
    for value in range(1, number):
        stop.attr["value"].tensor.int64_val[:] = [value]
        yield graph.SerializeToString()
    stop.attr["value"].tensor.int64_val[:] = [ENDLESS]
    yield graph.SerializeToString()


def heartbeat(client: DispatcherClient, worker: str) -> list[int]:
    """The passes (iterations) of the tasks that the answer has."""
    sent = MESSAGES.Heartbeat(worker_address=worker, worker_uid=zlib.crc32(worker.encode()))
    return [task.iteration_id for task in client.call("WorkerHeartbeat", sent, MESSAGES.Heard).new_tasks]


def fill(client: DispatcherClient, size: Size) -> None:
    """Registers datasets, begins jobs, lets workers report for the first time, and takes splits."""
    name = ""
    for graph in graphs(size.datasets):
        asked = MESSAGES.NewDataset(dataset=MESSAGES.Graph(graph=graph))
        name = client.call("GetOrRegisterDataset", asked, MESSAGES.Dataset).dataset_id
    for number in range(size.jobs):
        asked = MESSAGES.NewJob(dataset_id=name, processing_mode=DYNAMIC, job_name=f"job {number}")
        client.call("GetOrCreateIteration", client.call("GetOrCreateJob", asked, MESSAGES.Job), MESSAGES.Pass)
    passes: list[int] = []
    for worker in addresses(size.workers):
        passes = heartbeat(client, worker)
    for number in passes:
        for _ in range(size.splits):
            client.call("GetSplit", MESSAGES.Pass(iteration_id=number), MESSAGES.Split)


def restart(size: Size) -> Result:
    with tempfile.TemporaryDirectory(prefix="tfdist-restart.") as work_dir, dispatcher_in(work_dir) as dispatcher:
        dispatcher.wait(0)
        begun = time.monotonic()
        with DispatcherClient(dispatcher.address.grpc, DEADLINE_S) as client:
            fill(client, size)
        filled = time.monotonic()
        killed, killed_unix = time.monotonic(), time.time()
        dispatcher.kill()
        dispatcher.start()
        dispatcher.wait(size.workers)
        back, back_unix = time.monotonic(), time.time()
        with DispatcherClient(dispatcher.address.grpc, DEADLINE_S) as client:
            tasks = [len(heartbeat(client, worker)) for worker in addresses(size.workers)]
        answered = time.monotonic()
        if tasks != [size.jobs] * size.workers:
            raise SystemExit(f"each worker has {size.jobs} tasks; after the restart it was told {sorted(set(tasks))}")
        told = fetch(dispatcher.address, DEADLINE_S)
        return Result(
            size=size,
            fill_s=filled - begun,
            journal_bytes=int(told.counters["journal_bytes"]),
            import_s=told.started - killed_unix,
            start_s=back_unix - told.started,
            restart_s=back - killed,
            heartbeats_s=answered - back,
            idle_cores=idle_cores(dispatcher.address, IDLE_S),
            memory_bytes=int(Path(f"/proc/{told.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
        )


def idle_cores(address: ServiceAddress, seconds: float) -> float:
    """CPU time a second of a dispatcher that is left alone for so long."""
    before, start = fetch(address, DEADLINE_S).counters["cpu_seconds_total"], time.monotonic()
    time.sleep(seconds)
    after, end = fetch(address, DEADLINE_S).counters["cpu_seconds_total"], time.monotonic()
    return (after - before) / (end - start)


@contextmanager
def dispatcher_in(work_dir: str) -> Iterator[Dispatcher]:
    pair = port.take(0, None, "127.0.0.1")
    pair.release()
    made = Dispatcher(work_dir, pair.port)
    try:
        yield made
    finally:
        made.close()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1000, help="workers that have reported")
    parser.add_argument("--datasets", type=int, default=10_000, help="registered datasets")
    parser.add_argument("--jobs", type=int, default=4, help="passes that are being read, each by all workers")
    parser.add_argument("--splits", type=int, default=0, help="parts of the data that each pass has handed out")
    parser.add_argument("--json", type=Path, help="also writes the figures into this file")
    options = parser.parse_args(arguments)
    result = restart(Size(options.workers, options.datasets, options.jobs, options.splits))
    for name, value in asdict(result).items():
        print(f"{name:<14} {value}")
    if options.json:
        options.json.write_text(json.dumps(asdict(result), indent=1) + "\n")


if __name__ == "__main__":
    main()
