"""Servers for the tests: in this process, and a worker in a process of its own that can be told to drain."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tfdist import data_service

WORKER = """
import json, sys
from tfdist import data_service
from tfdist.native import library
with data_service.Worker(data_service.WorkerConfig(sys.argv[1])) as worker:
    for line in sys.stdin:
        if line.strip() in ("drain", "go on"):
            library.set_draining(line.strip() == "drain")
        serving = library.read_serving()
        print(json.dumps({name: getattr(serving, name) for name, _ in serving._fields_}), flush=True)
"""


class WorkerProcess:
    """A worker that answers each line it is told with its counters."""

    def __init__(self, dispatcher: str) -> None:
        command = [sys.executable, "-c", WORKER, dispatcher]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.tell("read")  # it is there

    def tell(self, line: str) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return SimpleNamespace(**json.loads(self.process.stdout.readline()))

    def close(self) -> None:
        """Kills it: nobody reads from it any more, and TensorFlow takes many seconds to end by itself."""
        self.process.kill()
        self.process.communicate()


@contextlib.contextmanager
def servers(workers: int) -> Iterator[str]:
    """The address of a dispatcher with so many workers, all in this process."""
    with contextlib.ExitStack() as stack:
        dispatcher = stack.enter_context(data_service.Dispatcher(data_service.DispatcherConfig()))
        for _ in range(workers):
            stack.enter_context(data_service.Worker(data_service.WorkerConfig(str(dispatcher.service))))
        yield str(dispatcher.service)


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    """A dispatcher with one worker."""
    with servers(1) as address:
        yield address


@pytest.fixture(scope="module")
def service_of_two() -> Iterator[str]:
    """A dispatcher with two workers."""
    with servers(2) as address:
        yield address


@pytest.fixture(scope="module")
def lonely_dispatcher() -> Iterator[str]:
    """A dispatcher without workers."""
    with servers(0) as address:
        yield address


@pytest.fixture(scope="module")
def drainable() -> Iterator[tuple[str, WorkerProcess]]:
    """A dispatcher with one worker in this process and one in a process of its own."""
    with servers(1) as address, contextlib.closing(WorkerProcess(address)) as worker:
        yield address, worker


@pytest.fixture
def dispatcher() -> Iterator[data_service.Dispatcher]:
    with data_service.Dispatcher(data_service.DispatcherConfig(host="127.0.0.1")) as made:
        yield made


@pytest.fixture
def worker_of() -> Iterator[Callable[..., data_service.Worker]]:
    """Starts workers of a dispatcher, and stops them."""
    made: list[data_service.Worker] = []

    def start(dispatcher: data_service.Dispatcher, **settings: object) -> data_service.Worker:
        made.append(
            data_service.Worker(data_service.WorkerConfig(str(dispatcher.service), host="127.0.0.1", **settings))
        )
        return made[-1]

    yield start
    for worker in made:
        worker.stop()
