"""Makes a dataset run on the workers of a data service instead of in the trainer."""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.data.experimental.service import _pywrap_server_lib

from tfdist import config
from tfdist.data_service.inspection.address import ServiceAddress
from tfdist.data_service.inspection.handshake import shake_hands
from tfdist.data_service.inspection.survey import DRAINED, Survey
from tfdist.data_service.trainer import outlook, watch
from tfdist.data_service.trainer.fitness import check_fit
from tfdist.data_service.trainer.position import check_dynamic, gathers
from tfdist.data_service.trainer.reading import Reading
from tfdist.errors import ConfigError

_LOG = logging.getLogger("tfdist")
READ = (
    "passes of job %r at %s that have been read to the end: %d. A trainer that starts from the first pass gets no "
    "elements from them, even with other data or code. Use a new job_name for each run."
)
_PROTOCOL = "grpc"
_COMPRESSIONS = ("AUTO", "SNAPPY", None)
# Sharding by file looks for the source of the files from the end of the graph, and knows TensorFlow's own ops only.
_NOT_SERVED = frozenset({"file", "file_or_data"})
# What `tfdist.shard` puts on the dataset it returns.
_SHARD_MARK = "_tfdist_remainder"
# How the id of a dataset begins that "dynamic" may not read; the sharding that it was registered for follows.
_NOT_DYNAMIC = "registered-for-"


def distribute(  # noqa: PLR0913 -- settings, all by keyword
    dataset: Any,
    service: str | None = None,
    sharding: str = "dynamic",
    *,
    job_name: str | None = None,
    compression: str | None = "AUTO",
    max_outstanding_requests: int | None = None,
    cross_trainer_cache: str | None = None,
    consumer_index: int | None = None,
    num_consumers: int | None = None,
    wait_seconds: float = 60,
    element_id: Callable[..., Any] | None = None,
    expected: int | None = None,
) -> Any:
    """Runs a dataset on the workers of a data service.

    You need it if preprocessing, not the training step, takes the time. Steps after it, such as `prefetch`, run in the
    trainer. Reads are counted: see `visitation`, `wait_for_data` and `tfdist.callbacks.DataWait`.

    Args:
        dataset: A `tf.data.Dataset` that can be serialised: no `py_function`, no generator.
        service: "HOST:PORT" of the dispatcher, or "HOST:PORT/CONTROL" if its control port is not PORT + 1; None uses
            the job's own, set by `tfdistrun --data-workers` (`TFDIST_DATA_SERVICE`).
        sharding: "dynamic": the workers share the elements; each is delivered exactly once while no server dies, at
            most once otherwise. A dataset with `take`, `skip`, `shard`, `zip`, `scan`, `unique` or another step that
            depends on position is rejected. "off": every worker delivers all elements. "file", "data", "file_or_data",
            "hint": each worker has a fixed shard, by files, by every n-th element, or as `shard(SHARD_HINT, ...)` says;
            the dispatcher must know the workers' addresses in advance, and a restarted worker starts its shard from
            scratch. With "file" and "file_or_data" a worker neither drains nor counts.
        job_name: Trainers that give the same name share one pass over the data; None gives each trainer its own. A
            long-running service remembers what a name has read: finished passes deliver nothing, and later ones use the
            data and code of whoever used the name first. So use a new name for each run.
        compression: "AUTO" and "SNAPPY" compress elements on the wire, None does not.
        max_outstanding_requests: Elements that may be requested at a time, and so held in the trainer's memory; None
            leaves it to TensorFlow. Do not set it if workers come and go: in each later pass TensorFlow also asks
            workers that have drained, and each takes up one request.
        cross_trainer_cache: Name of this trainer. Trainers with the same `job_name` and different names get the same
            elements, produced once and cached in the workers' memory for a while. Needs an infinite dataset.
        consumer_index: Index of this trainer, starting at 0, for coordinated reads: the trainers get elements in turn,
            one each per step. Needs `num_consumers`, a `job_name` and an infinite dataset.
        num_consumers: How many trainers take part in coordinated reads.
        wait_seconds: Seconds that one element may take, after which reading fails with
            `tf.errors.DeadlineExceededError`. Raise it if a worker first fills a large shuffle buffer.
        element_id: Function of an element, as for `map`, that returns an integer unique to it, or a vector of such
            integers for a batch; then set `expected` too. It runs on the workers, and `visitation` then reports exactly
            what was lost and duplicated. The ids cost the trainer 1 bit each if they are dense, about 130 bytes each if
            they are spread over all 64 bits.
        expected: Elements of one pass over all the data, or ids if there is an `element_id`. The visitation report
            needs it to count lost elements if `dataset.cardinality()` is unknown, as after `filter`, or if `element_id`
            returns a vector of ids for a batch.

    Returns:
        A `tf.data.Dataset` of the same element type.

    Raises:
        ConfigError: If an argument is invalid, an element is too large for the service (2 GB), the dispatcher rejects
            the dataset, or a server of the service has another version of tfdist or TensorFlow.
        PeerLostError: If no dispatcher answers at `service` within 15 seconds.

    Example:

    ```python
    job = tfdist.broadcast_object(uuid.uuid4().hex)  # the same on all ranks, and never used before
    dataset = tfdist.data_service.distribute(dataset, "dispatcher:5050", job_name=job).prefetch(2)
    ```
    """
    reading = Reading(
        sharding,
        job_name=job_name,
        max_outstanding_requests=max_outstanding_requests,
        cross_trainer_cache=cross_trainer_cache,
        consumer_index=consumer_index,
        num_consumers=num_consumers,
        wait_seconds=wait_seconds,
        expected=expected,
    )
    prepared = _prepare(dataset, reading.sharding, compression, element_id)
    _check_whole(dataset, reading.sharding, job_name)
    found = _meet(service)
    _check_workers(found, reading)
    _warn_of_read_passes(found, reading)
    address = ServiceAddress.parse(found.service)
    # Not by an id: trainers that share a job would each register a dataset, and so have a job of their own.
    transformation = tf.data.experimental.service.distribute(
        service=_target(address), compression=compression, **_arguments(reading, found)
    )
    cardinality = int(dataset.cardinality())
    with _handing_over(address):
        distributed = prepared.apply(transformation)
    return _watch(distributed, address, job_name or "", reading, cardinality, gathered=gathers(dataset))


def register(
    dataset: Any,
    service: str | None = None,
    *,
    compression: str | None = "AUTO",
    element_id: Callable[..., Any] | None = None,
    sharding: str = "dynamic",
) -> str:
    """Registers a dataset with a data service, from which `from_id` reads it.

    You need it to keep preprocessing code out of the trainers: one program registers the dataset, and the trainers only
    need its id.

    Args:
        dataset: As for `distribute`.
        service: As for `distribute`.
        compression: As for `distribute`.
        element_id: As for `distribute`.
        sharding: How it will be read, as for `distribute`. "file" and "file_or_data" need the dataset unchanged. A
            dataset that "dynamic" rejects can be registered for another one, and is not read with "dynamic" then.

    Returns:
        The id that the service assigned to the dataset.

    Raises:
        ConfigError: As `distribute`.

    Example:

    ```python
    dataset_id = tfdist.data_service.register(dataset, "dispatcher:5050")
    ```
    """
    prepared = _prepare(dataset, Reading(sharding).sharding, compression, element_id)
    _check_whole(dataset, sharding)
    address = ServiceAddress.parse(_meet(service).service)
    with _handing_over(address):
        registered = tf.data.experimental.service.register_dataset(
            _target(address), prepared, compression=compression, dataset_id=_id_for(dataset, sharding)
        )
        return str(registered.numpy().decode())


def from_id(  # noqa: PLR0913 -- settings, all by keyword
    dataset_id: str,
    service: str | None = None,
    sharding: str = "dynamic",
    *,
    job_name: str | None = None,
    max_outstanding_requests: int | None = None,
    cross_trainer_cache: str | None = None,
    consumer_index: int | None = None,
    num_consumers: int | None = None,
    wait_seconds: float = 60,
    expected: int | None = None,
) -> Any:
    """Reads a dataset that was registered with a data service by `register`.

    Args:
        dataset_id: What `register` returned.
        service: As for `distribute`.
        sharding: As for `distribute`; likewise all further arguments.
        job_name: As for `distribute`, for trainers that read the same id.
        max_outstanding_requests: As for `distribute`.
        cross_trainer_cache: As for `distribute`.
        consumer_index: As for `distribute`.
        num_consumers: As for `distribute`.
        wait_seconds: As for `distribute`.
        expected: As for `distribute`.

    Returns:
        A `tf.data.Dataset` of the element type of the registered one.

    Raises:
        ConfigError: As `distribute`, if the service has no dataset with this id, and if `sharding` is "dynamic" and
            the dataset one that it rejects.

    Example:

    ```python
    job = tfdist.broadcast_object(uuid.uuid4().hex)  # the same on all ranks, and never used before
    dataset = tfdist.data_service.from_id(dataset_id, "dispatcher:5050", job_name=job).prefetch(2)
    ```
    """
    reading = Reading(
        sharding,
        job_name=job_name,
        max_outstanding_requests=max_outstanding_requests,
        cross_trainer_cache=cross_trainer_cache,
        consumer_index=consumer_index,
        num_consumers=num_consumers,
        wait_seconds=wait_seconds,
        expected=expected,
    )
    _check_id(dataset_id, reading.sharding)
    found = _meet(service)
    _check_workers(found, reading)
    _warn_of_read_passes(found, reading)
    address = ServiceAddress.parse(found.service)
    cardinality = _cardinality(address, dataset_id)
    dataset = tf.data.experimental.service.from_dataset_id(
        service=_target(address), dataset_id=dataset_id, **_arguments(reading, found)
    )
    # Of a registered dataset the steps are not told, so it may have any.
    return _watch(dataset, address, dataset_id, reading, cardinality, gathered=True)


def _meet(service: str | None) -> Survey:
    """Surveys the service, once it answers."""
    named = service if service is not None else config.read().data_service
    if not named:
        raise ConfigError(
            "no data service is given. Pass its address as `service`, or start the job with tfdistrun --data-workers N."
        )
    if not isinstance(named, str):
        raise ConfigError(f'service must be "HOST:PORT" of a dispatcher; received {named!r}.')
    found = shake_hands(named)
    outlook.keep(ServiceAddress.parse(named))
    return found


def _check_workers(found: Survey, reading: Reading) -> None:
    """Rejects fixed shards if the dispatcher has no list of its workers.

    TensorFlow's dispatcher would accept the job, and then fail for every worker that asks for tasks, even after a
    restart.
    """
    if not reading.fixed:
        return
    told = found.dispatcher.status
    if told is None or not told.fixed_workers:
        reason = "was started without them" if told is not None else f"does not report them: {found.dispatcher.detail}"
        raise ConfigError(
            f"sharding={reading.sharding!r} needs a dispatcher that knows its workers: `dispatcher --workers "
            f"HOST:PORT,...` or `Cluster(..., fixed_workers=True)`; the one at {found.dispatcher.address} {reason}."
        )


def _warn_of_read_passes(found: Survey, reading: Reading) -> None:
    """Warns if a job's first pass has already been read: this trainer may be late, or reuse an old name."""
    told = found.dispatcher.status
    if told is None or reading.job_name is None:
        return
    of_job = (told.jobs.get(str(number), ("", 0)) for number in told.ended)
    read = {repetition for name, repetition in of_job if name == reading.job_name}
    if 1 in read:
        _LOG.warning(READ, reading.job_name, found.dispatcher.address, len(read))


@contextlib.contextmanager
def _handing_over(service: ServiceAddress) -> Iterator[None]:
    """Explains what to do if the dispatcher rejects a dataset."""
    try:
        yield
    except tf.errors.OpError as error:
        raise ConfigError(
            f"the dispatcher at {service.grpc} did not accept the dataset: {error.message}. If its work_dir is full "
            "or cannot be written, free space there; no restart is needed. If the dataset is the reason, build it "
            "from files: data held in memory is sent with it, up to 2 GB."
        ) from error


def _prepare(dataset: Any, sharding: str, compression: str | None, element_id: Callable[..., Any] | None) -> Any:
    """What the workers run for a dataset."""
    if not isinstance(dataset, tf.data.Dataset):
        raise ConfigError(f"dataset must be a tf.data.Dataset; received {type(dataset)}.")
    if compression not in _COMPRESSIONS:
        raise ConfigError(f'compression must be "AUTO", "SNAPPY" or None; received {compression!r}.')
    if sharding == "dynamic":
        check_dynamic(dataset)
    check_fit(dataset, sharding)
    if element_id is not None:
        dataset = watch.add_ids(dataset, element_id)
    watch.check_size(dataset.element_spec)
    return dataset if sharding in _NOT_SERVED else watch.serve(dataset)


def _check_whole(dataset: Any, sharding: str, job_name: str | None = None) -> None:
    """Raises ConfigError for a part of the data that the workers, or the trainers of a job, would divide again."""
    if (sharding != "off" or job_name is not None) and _is_part(dataset):
        raise ConfigError(
            "the dataset comes from tfdist.shard, so each rank has another one: the workers would divide it anew, and "
            "of trainers with one job_name all would read the part of the first. Pass the whole data to distribute, "
            f"with the same job_name on all ranks, and shard what it returns. Received sharding={sharding!r} and "
            f"job_name={job_name!r}."
        )


def _is_part(dataset: Any) -> bool:
    return hasattr(dataset, _SHARD_MARK) or any(map(_is_part, dataset._inputs()))


def _id_for(dataset: Any, sharding: str) -> str | None:
    """The id of a dataset that "dynamic" rejects, which says so to `from_id`; None leaves it to the service."""
    try:
        check_dynamic(dataset)
        check_fit(dataset, "dynamic")
    except ConfigError:
        return f"{_NOT_DYNAMIC}{sharding}-{uuid.uuid4().hex}"
    return None


def _check_id(dataset_id: str, sharding: str) -> None:
    """Rejects an id by `_id_for` if it is read with "dynamic": nothing else tells what the dataset is made of."""
    if sharding == "dynamic" and str(dataset_id).startswith(_NOT_DYNAMIC):
        given = dataset_id.removeprefix(_NOT_DYNAMIC).rpartition("-")[0]
        raise ConfigError(
            f"dataset {dataset_id!r} was registered with sharding={given!r}, and has a step that depends on the "
            "position of an element, a cache or an asserted length, with which dynamic sharding would lose or double "
            f"elements; received sharding='dynamic', which is the default. Pass sharding={given!r}."
        )


def _watch(
    dataset: Any, service: ServiceAddress, name: str, reading: Reading, cardinality: int, *, gathered: bool
) -> Any:
    """The watch of the trainer; a negative cardinality is unknown or infinite."""
    by_id = watch.has_ids(dataset.element_spec)
    tells = cardinality >= 0 and (not by_id or watch.has_one_id(dataset.element_spec))
    watched = watch.Watch(
        watch.new_name(f"{service.grpc}/{name}"),
        service.grpc,
        expected=reading.expected_elements(cardinality if tells else None),
        shared=reading.shared,
        by_id=by_id,
        repeats=reading.repeats,
        endless=cardinality == tf.data.INFINITE_CARDINALITY,
        gathered=gathered and reading.parts_the_source,
    )
    return watch.watch(dataset, watched, reading.wait_seconds)


def _arguments(reading: Reading, found: Survey) -> dict[str, Any]:
    """The arguments for TensorFlow."""
    service = tf.data.experimental.service
    requests = reading.max_outstanding_requests
    if requests is not None:
        # TensorFlow keeps polling a worker that has left until the pass ends, which occupies one request.
        requests += sum(worker.state == DRAINED for worker in found.workers)
    cache = service.CrossTrainerCache(reading.cross_trainer_cache) if reading.cross_trainer_cache else None
    return {
        "processing_mode": service.ShardingPolicy[reading.sharding.upper()],
        "job_name": reading.job_name,
        "consumer_index": reading.consumer_index,
        "num_consumers": reading.num_consumers,
        "max_outstanding_requests": requests,
        "cross_trainer_cache": cache,
    }


def _cardinality(service: ServiceAddress, dataset_id: str) -> int:
    """Number of elements of a registered dataset, or tf.data's codes for infinite and unknown."""
    try:
        metadata = _pywrap_server_lib.TF_DATA_GetDataServiceMetadataByID(dataset_id, service.grpc, _PROTOCOL)
    except (RuntimeError, tf.errors.OpError) as error:
        raise ConfigError(
            f"the data service at {service.grpc} has no dataset with id {dataset_id!r}: {error}. Expected an id that "
            "`register` returned for this service."
        ) from error
    return int(metadata.cardinality)


def _target(service: ServiceAddress) -> str:
    return f"{_PROTOCOL}://{service.grpc}"
