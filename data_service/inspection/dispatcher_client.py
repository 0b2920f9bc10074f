"""Queries tf.data's own servers over gRPC: the workers of a dispatcher, and the tasks of a worker.

Declares only the fields that are needed. Their numbers were verified against TensorFlow 2.21 by experiment.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError

from tfdist.data_service.inspection import message
from tfdist.errors import ConfigError, PeerLostError

_LARGEST_REPLY_BYTES = 64 << 20
# No proxy between the parts of one cluster, whatever the environment says; a lost server is tried again soon.
_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", _LARGEST_REPLY_BYTES),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
_MESSAGES = message.classes("""
    message Empty {}
    message Worker { string address = 1; }
    message Workers { repeated Worker workers = 1; }
    message WorkerTask { int64 task_id = 2; int64 iteration_id = 3; }
    message WorkerTasks { repeated WorkerTask tasks = 1; }
    message Heartbeat { string worker_address = 1; repeated int64 current_tasks = 2; }
    message Mode { int64 sharding_policy = 1; }
    message Task { string dataset_id = 3; int64 task_id = 4; int64 iteration_id = 5; Mode processing_mode = 10; }
    message Heard { repeated Task new_tasks = 1; }
    message Progress { int64 task_id = 1; bool completed = 2; }
    message Update { string worker_address = 1; repeated Progress updates = 2; }
""")
# The numbers of ShardingPolicy, by their names here.
_POLICIES = ("off", "dynamic", "file", "data", "file_or_data", "hint")


@dataclass(frozen=True)
class TaskTold:
    """What a dispatcher reports about a task.

    Attributes:
        pass_number: The pass over a dataset that it is part of; tf.data calls it an iteration.
        dataset: The id of the dataset.
        sharding: The policy by which workers share the dataset.
    """

    pass_number: int
    dataset: str
    sharding: str


_T = TypeVar("_T", bound="_Client")


class _Client:
    """A connection to a server of tf.data; a context manager.

    Args:
        address: "HOST:PORT" of its gRPC.
        timeout_s: Seconds each call may take.
    """

    _role = _hint = ""

    def __init__(self, address: str, timeout_s: float) -> None:
        self._address, self._timeout_s = address, timeout_s
        self._channel = grpc.insecure_channel(address, options=_OPTIONS)

    def __enter__(self: _T) -> _T:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()

    def call(self, method: str, request: Any, answer: Any) -> Any:
        """Sends a request and returns the answer.

        Args:
            method: Name of the method.
            request: A message.
            answer: Class of the answer.

        Raises:
            ConfigError: If a different gRPC server answers.
            PeerLostError: If the server does not answer, or not with such a message.
        """
        path = f"/tensorflow.data.{self._role.capitalize()}Service/{method}"
        call = self._channel.unary_unary(path, request_serializer=None, response_deserializer=None)
        try:
            return answer.FromString(call(request.SerializeToString(), timeout=self._timeout_s))
        except DecodeError:
            raise PeerLostError(
                f"the {self._role} at {self._address} answers {method} with a message that is not from a tf.data "
                "server. Check whether another program uses that port."
            ) from None
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise ConfigError(
                    f"the server at {self._address} is not a {self._role}: it does not know {method}. {self._hint}"
                ) from None
            raise PeerLostError(
                f"the {self._role} at {self._address} does not answer {method}: {error.code().name}, "
                f"{error.details() or 'no details'}"
            ) from None


class WorkerClient(_Client):
    """A connection to a worker; see `_Client`."""

    _role = "worker"
    _hint = "Another program has taken the port."

    def tasks(self) -> dict[int, int]:
        """The pass of each task of the worker, by the task's id.

        Raises:
            PeerLostError: If the worker does not answer.
        """
        told = self.call("GetWorkerTasks", _MESSAGES.Empty(), _MESSAGES.WorkerTasks)
        return {task.task_id: task.iteration_id for task in told.tasks}


class DispatcherClient(_Client):
    """A connection to a dispatcher; see `_Client`."""

    _role = "dispatcher"
    _hint = "It may be a worker. Give the dispatcher's address, which the dispatcher prints at startup."

    def workers(self) -> tuple[str, ...]:
        """Host and port of every worker that ever registered, sorted, including dead ones.

        Raises:
            ConfigError: If a different gRPC server answers, such as a worker.
            PeerLostError: If the dispatcher does not answer.
        """
        told = self.call("GetWorkers", _MESSAGES.Empty(), _MESSAGES.Workers)
        return tuple(sorted(worker.address for worker in told.workers))

    def tasks(self, worker: str) -> tuple[int, ...]:
        """The ids of the unfinished tasks that the dispatcher has for a worker, queried on the worker's behalf.

        Raises:
            PeerLostError: If the dispatcher does not answer.
        """
        return tuple(task.task_id for task in self._heartbeat(worker))

    def describe(self, worker: str, known: Iterable[int]) -> tuple[TaskTold, ...]:
        """Describes the unfinished tasks of a worker, except those with known ids.

        Without a work dir the dispatcher's answer includes the graph of each dataset, so request as few as possible.
        The query is made on the worker's behalf, and only for a reachable one: the dispatcher takes the worker for
        alive.

        Raises:
            PeerLostError: If the dispatcher does not answer.
        """
        return tuple(
            TaskTold(task.iteration_id, task.dataset_id, _policy(task.processing_mode.sharding_policy))
            for task in self._heartbeat(worker, known)
        )

    def finish(self, worker: str, tasks: Iterable[int]) -> None:
        """Reports tasks of a worker as completed. Use it only for a worker that is gone: what it held is not delivered.

        Raises:
            PeerLostError: If the dispatcher does not answer.
        """
        updates = [_MESSAGES.Progress(task_id=task, completed=True) for task in tasks]
        self.call("WorkerUpdate", _MESSAGES.Update(worker_address=worker, updates=updates), _MESSAGES.Empty)

    def _heartbeat(self, worker: str, known: Iterable[int] = ()) -> Any:
        sent = _MESSAGES.Heartbeat(worker_address=worker, current_tasks=known)
        return self.call("WorkerHeartbeat", sent, _MESSAGES.Heard).new_tasks


def _policy(number: int) -> str:
    return _POLICIES[number] if 0 <= number < len(_POLICIES) else f"policy {number}"
