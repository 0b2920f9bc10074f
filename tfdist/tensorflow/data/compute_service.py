"""Horovod's names for a tf.data service used by training; the service itself is `tfdist.data_service`.

As in Horovod, importing it adds the method `send_to_data_service` to `tf.data.Dataset`.

Example:

```python
compute_config = TfDataServiceConfig.read("/tmp/compute.json", wait_for_file_creation=True)
dataset = dataset.send_to_data_service(compute_config, hvd.rank(), hvd.size())
```
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import os
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfdist import config, data_service
from tfdist.data_service.inspection.handshake import shake_hands
from tfdist.data_service.inspection.status import READY
from tfdist.data_service.server.drain_request import read_secret
from tfdist.errors import ConfigError, PeerLostError
from tfdist.ops.barrier import barrier
from tfdist.ops.object import broadcast_object
from tfdist.system import atomic_file
from tfdist.tensorflow.data.meeting import ComputeClient
from tfdist.world import runtime

__all__ = ["TfDataServiceConfig", "compute_worker_fn", "send_to_data_service", "tf_data_service"]

SIDES = ("compute", "training")
_TIMEOUT_S = 60
_POLL_S = 0.2
# What a survey gets at least, also the last one: in less, workers that are ready would be shown as unknown.
_SURVEY_S = 4.0
_STOP_S = 3.0
_SMALLEST_KEY_BYTES, _LARGEST_FILE_BYTES = 16, 1 << 20

_shared_datasets = itertools.count()
_run: list[str] = []


@dataclasses.dataclass(frozen=True)
class TfDataServiceConfig:
    """What a training job needs to use a compute job. Whoever has it can run code in the compute job.

    Attributes:
        dispatchers: Number of dispatchers: 1, shared by all training ranks, or one per training rank.
        workers_per_dispatcher: Workers of each dispatcher.
        dispatcher_side: Where the dispatchers run: "compute" or "training".
        addresses: Addresses and ports of the compute service, by network interface.
        key: Secret that authenticates a process to the service, 16 bytes or more.
        timeout: Seconds for each wait for dispatchers and workers.

    Raises:
        ConfigError: If a value is invalid.
    """

    dispatchers: int
    workers_per_dispatcher: int
    dispatcher_side: str
    addresses: Mapping[str, Sequence[tuple[str, int]]]
    key: bytes = dataclasses.field(repr=False)
    timeout: float = _TIMEOUT_S

    def __post_init__(self) -> None:
        for name in ("dispatchers", "workers_per_dispatcher"):
            if (value := getattr(self, name)) < 1:
                raise ConfigError(f"{name} must be 1 or more; received {value}.")
        if self.dispatcher_side not in SIDES:
            raise ConfigError(f"dispatcher_side must be one of {', '.join(SIDES)}; received {self.dispatcher_side!r}.")
        if len(self.key) < _SMALLEST_KEY_BYTES:
            raise ConfigError(f"key must have {_SMALLEST_KEY_BYTES} bytes or more; received {len(self.key)}.")
        if not 0 < self.timeout < math.inf:
            raise ConfigError(f"timeout must be a finite number of seconds greater than 0; received {self.timeout}.")

    def compute_client(self, verbose: int = 1) -> ComputeClient:
        """A client of the compute service; its `shutdown()` ends the compute job.

        Args:
            verbose: 2 logs each request to the service at the level "info".
        """
        return ComputeClient(self.addresses, self.key, verbose=verbose)

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON, including the key."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)} | {"key": self.key.hex()}

    @staticmethod
    def from_dict(config: Mapping[str, Any]) -> TfDataServiceConfig:
        """Makes the configuration from the result of `to_dict`.

        Raises:
            ConfigError: If a field is missing, unknown or of the wrong type.
        """
        try:
            places = {
                name: [(str(host), int(port)) for host, port in found] for name, found in config["addresses"].items()
            }
            return TfDataServiceConfig(**{**config, "key": bytes.fromhex(config["key"]), "addresses": places})
        except ConfigError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            names = ", ".join(field.name for field in dataclasses.fields(TfDataServiceConfig))
            raise ConfigError(
                f"this is not the configuration of a compute service: {error!r}. Expected {names}."
            ) from None

    def write(self, filename: str) -> None:
        """Writes the file atomically, with mode 0600.

        Raises:
            OSError: If it cannot be written.
        """
        atomic_file.write_atomically(filename, self._write_secretly)

    def _write_secretly(self, path: Path) -> None:
        # Others may be able to write to the folder: an existing file or link there is never used.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(self.to_dict(), file)

    @staticmethod
    def read(filename: str, wait_for_file_creation: bool = False, timeout: float = _TIMEOUT_S) -> TfDataServiceConfig:
        """Reads what `write` has written.

        Args:
            filename: Path of the file.
            wait_for_file_creation: Whether to wait for the file to appear.
            timeout: Seconds to wait for it.

        Raises:
            ConfigError: If the file is not there (in time), can be read by others, or contains something else.
        """
        patience_s = timeout if wait_for_file_creation else 0
        deadline = time.monotonic() + patience_s
        while not os.path.exists(filename):
            if time.monotonic() >= deadline:
                raise ConfigError(
                    f"{filename} does not exist after waiting {patience_s:g} s. The compute job writes it: tfdistrun "
                    f"-np N python -m tfdist.tensorflow.data.compute_worker {filename}"
                )
            time.sleep(_POLL_S)
        secret = read_secret(filename, _LARGEST_FILE_BYTES)
        try:
            return TfDataServiceConfig.from_dict(json.loads(secret))
        except ValueError as error:  # ConfigError is one
            raise ConfigError(f"{filename}: {error}") from None


@contextlib.contextmanager
def tf_data_service(compute_config: TfDataServiceConfig, rank: int) -> Iterator[str]:
    """Gives a training rank the address of its dispatcher, once all workers of that dispatcher are ready.

    With `dispatcher_side` "training" the dispatcher runs in this context: on each rank, or on rank 0 if there is one
    for all. That one runs until all ranks have left the context.

    Args:
        compute_config: The configuration written by the compute job.
        rank: Rank of this process in the training job.

    Yields:
        "HOST:PORT", for `tfdist.data_service.distribute` and for that of TensorFlow.

    Raises:
        ConfigError: If there is no dispatcher for this rank.
        PeerLostError: If the compute service, the dispatcher or its workers are not available within the timeout.

    Example:

    ```python
    with tf_data_service(compute_config, hvd.rank()) as address:
        model.fit(tfdist.data_service.distribute(dataset, address).prefetch(2))
    ```
    """
    deadline = time.monotonic() + compute_config.timeout
    index = rank if compute_config.dispatchers > 1 else 0
    if not 0 <= index < compute_config.dispatchers:
        raise ConfigError(
            f"rank {rank} has no dispatcher: there are {compute_config.dispatchers}, one per rank starting at 0. "
            "Start the compute job with --dispatchers 1, or with as many as there are training ranks."
        )
    client = compute_config.compute_client()
    on_training_side = compute_config.dispatcher_side == "training"
    is_shared = compute_config.dispatchers == 1
    with contextlib.ExitStack() as servers:
        if on_training_side and (rank == 0 or not is_shared):
            _start_dispatcher(servers, client, index)
        address = client.wait_for_dispatcher_registration(index, compute_config.timeout)
        _wait_for_workers(address, compute_config.workers_per_dispatcher, deadline, compute_config.timeout)
        yield address
        if on_training_side and is_shared and runtime.is_initialized():
            barrier()


def send_to_data_service(
    dataset: tf.data.Dataset,
    compute_config: TfDataServiceConfig,
    rank: int,
    size: int | None = None,
    reuse_dataset: bool = False,
    round_robin: bool = False,
) -> tf.data.Dataset:
    """Runs a dataset on the workers of a compute job; also the method `dataset.send_to_data_service(...)`.

    Args:
        dataset: As for `tfdist.data_service.distribute` with sharding "dynamic".
        compute_config: The configuration written by the compute job, with `dispatcher_side` "compute".
        rank: Rank of this process in the training job.
        size: Number of training ranks; needed for `round_robin`.
        reuse_dataset: Whether the ranks share one pass over the data, first come, first served. All ranks of the job
            must then make the same calls in the same order. Otherwise each rank gets all elements.
        round_robin: Whether they take turns instead, one element each per step. Needs `reuse_dataset`, one dispatcher
            and an infinite dataset.

    Returns:
        A `tf.data.Dataset` of the same element type.

    Raises:
        ConfigError: If an argument is invalid.
        PeerLostError: As `tf_data_service`.

    Example:

    ```python
    dataset = dataset.repeat().batch(128).send_to_data_service(compute_config, hvd.rank(), hvd.size()).prefetch(2)
    ```
    """
    if compute_config.dispatcher_side == "training":
        raise ConfigError(
            'send_to_data_service cannot stop a dispatcher of dispatcher_side="training", because it has no end. Use '
            "`with tf_data_service(compute_config, rank) as address:` and tfdist.data_service.distribute instead."
        )
    if size is not None and not 0 <= rank < size:
        raise ConfigError(f"rank must be 0 to size - 1; received rank={rank}, size={size}.")
    if round_robin and (not reuse_dataset or size is None or compute_config.dispatchers > 1):
        raise ConfigError(
            "round_robin=True needs reuse_dataset=True, the size, and one dispatcher that all ranks share; received "
            f"reuse_dataset={reuse_dataset}, size={size}, dispatchers={compute_config.dispatchers}."
        )
    with tf_data_service(compute_config, rank) as address:
        return data_service.distribute(
            dataset,
            address,
            job_name=_job_name() if reuse_dataset else None,
            consumer_index=rank if round_robin else None,
            num_consumers=size if round_robin else None,
        )


tf.data.Dataset.send_to_data_service = send_to_data_service


def compute_worker_fn(compute_config: TfDataServiceConfig, timeout: float | None = None) -> None:
    """Serves as one rank of a compute job: a worker, and on some ranks a dispatcher, until the compute service ends.

    Args:
        compute_config: The same on all ranks of the job.
        timeout: Seconds to wait for the dispatcher; None uses that of `compute_config`.

    Raises:
        ConfigError: If the number of ranks in the job does not match `compute_config`.
        PeerLostError: If the dispatcher is not available in time, or the compute service does not answer.

    Example:

    ```python
    compute_worker_fn(TfDataServiceConfig.read("/tmp/compute.json", wait_for_file_creation=True))
    ```
    """
    runtime.init()
    rank, size = runtime.rank(), runtime.size()
    workers = compute_config.workers_per_dispatcher
    if size != compute_config.dispatchers * workers:
        raise ConfigError(
            f"{compute_config.dispatchers} dispatchers with {workers} workers each need one rank per worker, "
            f"{compute_config.dispatchers * workers} in all; this job has {size}. Start it with a multiple of "
            "--dispatchers."
        )
    timeout_s = compute_config.timeout if timeout is None else timeout
    client = compute_config.compute_client()
    index, first = divmod(rank, workers)
    with contextlib.ExitStack() as servers:
        if compute_config.dispatcher_side == "compute" and first == 0:
            _start_dispatcher(servers, client, index)
        address = client.wait_for_dispatcher_registration(index, timeout_s)
        made = data_service.WorkerConfig(address, host=_own_host(client), dispatcher_timeout_s=timeout_s)
        servers.callback(_stop, data_service.Worker(made))
        client.wait_for_shutdown()
        barrier()  # so that the service is there until all ranks know


def _start_dispatcher(servers: contextlib.ExitStack, client: ComputeClient, index: int) -> None:
    made = data_service.Dispatcher(data_service.DispatcherConfig(host=_own_host(client)))
    servers.callback(_stop, made)
    client.register_dispatcher(index, made.address)


def _own_host(client: ComputeClient) -> str:
    """The name at which the servers of this process are reached.

    Raises:
        ConfigError: If they would be open to other machines without permission.
    """
    host = client.host
    if not data_service.DispatcherConfig(host=host).local and not config.read().data_service_private_network:
        raise ConfigError(
            f"this compute job also serves other machines, and whoever can reach a server at {host} can run code in "
            "it. If the network is private, set TFDIST_DATA_SERVICE_PRIVATE_NETWORK=1 here as well."
        )
    return host


def _wait_for_workers(dispatcher: str, number: int, deadline: float, timeout_s: float) -> None:
    """Asks the dispatcher itself, so that workers of other dispatchers are never counted."""
    while True:
        found = shake_hands(dispatcher, max(_SURVEY_S, deadline - time.monotonic())).workers
        if sum(worker.state == READY for worker in found) >= number:
            return
        if time.monotonic() >= deadline:
            shown = ", ".join(f"{worker.address} {worker.state}" for worker in found) or "none"
            raise PeerLostError(
                f"the dispatcher at {dispatcher} did not have {number} ready workers within {timeout_s:g} s; it has: "
                f"{shown}. See the output of the compute job, or raise its --timeout."
            )
        time.sleep(_POLL_S)


def _stop(server: Any) -> None:
    """Stops a server, abandoning calls of trainers that may never end."""
    ending = threading.Thread(target=server.stop, name="tfdist-stop", daemon=True)
    ending.start()
    ending.join(_STOP_S)


def _job_name() -> str:
    """A name equal on all ranks, but different for each dataset and training job: a job name can be read only once."""
    if not _run:
        own = uuid.uuid4().hex
        _run.append(broadcast_object(own, name="compute_service_job") if runtime.is_initialized() else "job")
    return f"{_run[0]}-{next(_shared_datasets)}"
