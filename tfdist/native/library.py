"""The C interface of the core: loads it, declares its functions and translates its errors."""

from __future__ import annotations

import ctypes
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from tfdist import config, errors
from tfdist.native import build, gpu
from tfdist.native.knobs import SHARED_BYTES
from tfdist.native.once import Once

_ERRORS: dict[int, type[errors.TfdistError]] = {
    3: errors.ConfigError,
    4: errors.StallError,
    9: errors.MismatchError,
    14: errors.PeerLostError,
}
_UNAVAILABLE = 14
_MESSAGE_BYTES = 1 << 16
_REPORT_BYTES = 1 << 20


_Listen = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.c_void_p, ctypes.c_int)
_Connect = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_int),
    ctypes.POINTER(ctypes.c_int),
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_int),
    ctypes.c_void_p,
    ctypes.c_int,
)


class _Sockets(ctypes.Structure):
    """`tfdist_sockets` of the C interface."""

    _fields_ = (
        ("rank", ctypes.c_int),
        ("size", ctypes.c_int),
        ("host_ids", ctypes.POINTER(ctypes.c_int)),
        ("hosts", ctypes.POINTER(ctypes.c_char_p)),
        ("descriptors", ctypes.POINTER(ctypes.c_int)),
        ("listen", _Listen),
        ("connect", _Connect),
    )


# What the engine calls, for as long as the process lives.
_callbacks: list[Any] = []
# What has interrupted such a call.
_interrupts: list[BaseException] = []


class Connector(Protocol):
    """Makes connections with other ranks for the engine, which calls it from any thread, one at a time a channel."""

    def listen(self, channel: int) -> int:
        """Starts to listen for the connections of a channel; returns the port."""

    def connect(self, channel: int, ports: dict[int, int]) -> Mapping[int, int]:
        """Ends that; returns a descriptor for each rank, whose listeners have these ports."""


class Pass(ctypes.Structure):
    """`tfdist_pass` of the C interface: one pass of an iterator over the data; none if `number` is 0."""

    _fields_ = (
        ("number", ctypes.c_int64),
        ("elements", ctypes.c_int64),
        ("ids", ctypes.c_int64),
        ("distinct_ids", ctypes.c_int64),
        ("id_bytes", ctypes.c_int64),
        ("ended", ctypes.c_int64),
    )


class Watch(ctypes.Structure):
    """`tfdist_watch` of the C interface: what a trainer has read of one dataset."""

    _fields_ = (
        ("elements", ctypes.c_int64),
        ("waited_ns", ctypes.c_int64),
        ("longest_wait_ns", ctypes.c_int64),
        ("newest", Pass),
        ("newest_ended", Pass),
    )


class Serving(ctypes.Structure):
    """`tfdist_serving` of the C interface: what this process serves as a worker of a data service."""

    _fields_ = (
        ("elements", ctypes.c_int64),
        ("bytes", ctypes.c_int64),
        ("busy_ns", ctypes.c_int64),
        ("splits", ctypes.c_int64),
        ("open_iterators", ctypes.c_int64),
        ("ended_iterators", ctypes.c_int64),
        ("waiting_iterators", ctypes.c_int64),
        ("draining", ctypes.c_int64),
    )


def engine_settings(settings: config.Config, process: int = 0) -> bytes:
    """The settings for the engine, under its names, with room for autotuning to change them.

    Args:
        settings: The settings.
        process: The id of this process, if SIGUSR1 prints its stacks.
    """
    if settings.autotune != "0":
        shared, hierarchy = settings.shared_memory, settings.hierarchical_allreduce
        settings = dataclasses.replace(
            settings,
            shared_memory=max(shared, SHARED_BYTES) if shared else 0,
            hierarchical_allreduce="nccl" if hierarchy == "off" else hierarchy,
        )
    given = [(setting.engine, getattr(settings, setting.field)) for setting in config.SETTINGS if setting.engine]
    given.append(("process", process))
    for name, paths in (
        ("nccl_libraries", gpu.nccl_libraries(settings)),
        ("nvrtc_libraries", gpu.nvrtc_libraries(settings)),
        ("nvtx_libraries", gpu.nvtx_libraries()),
    ):
        given += [(name, path) for path in paths or [""]]
    return "".join(f"{name}={value}\n" for name, value in given).encode()


@Once
def load() -> ctypes.CDLL:
    """The core. Needs neither TensorFlow nor MPI.

    Raises:
        BuildError: If it is missing or cannot be loaded, or is of another build than these Python files.
    """
    path = build.core()
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise errors.BuildError(
            f"{path.name} could not be loaded: {error}. Install tfdist again: {build.reinstall()}"
        ) from error
    _declare(library)
    _check_compressions(library.tfdist_compressions().decode())
    return library


def _check_compressions(described: str) -> None:
    ours = ",".join(f"{name}={wire}" for name, wire in config.COMPRESSIONS.items())
    if described != ours:
        raise errors.BuildError(
            f"the shared library has the compressions {described}, but tfdist's Python files have {ours}: they are "
            f"from different builds. Install tfdist again: {build.reinstall()}"
        )


def call(name: str, *arguments: Any) -> None:
    """Calls a C function that returns a status code and a message.

    Raises:
        TfdistError: Of the class for the status.
    """
    message = ctypes.create_string_buffer(_MESSAGE_BYTES)
    code = getattr(load(), name)(*arguments, message, _MESSAGE_BYTES)
    if _interrupts:
        raise _interrupts.pop()
    if code != 0:
        raise _ERRORS.get(code, errors.TfdistError)(message.value.decode(errors="replace"))


def init_sockets(
    rank: int,
    host_ids: Sequence[int],
    hosts: Sequence[str],
    descriptors: Mapping[int, int],
    connector: Connector,
    settings: bytes,
) -> None:
    """Starts the engine on connections that are there.

    Args:
        rank: This process's rank.
        host_ids: By rank, equal where two share a host.
        hosts: The names of the hosts, by rank.
        descriptors: The connections, by rank, which the engine takes over.
        connector: Makes those of process sets.
        settings: As from `engine_settings`.

    Raises:
        TfdistError: As `call`.
    """
    given = _described(rank, host_ids, hosts, descriptors, connector)
    call("tfdist_init_sockets", ctypes.byref(given), settings)


def meet(
    rank: int, host_ids: Sequence[int], hosts: Sequence[str], descriptors: Mapping[int, int], connector: Connector
) -> None:
    """Continues as one of other ranks, after `tfdist_part`. The arguments are those of `init_sockets`.

    Raises:
        TfdistError: As `call`.
    """
    given = _described(rank, host_ids, hosts, descriptors, connector)
    call("tfdist_meet", ctypes.byref(given))
    del _callbacks[:-2]  # the engine before the last change may still exist


def _described(
    rank: int, host_ids: Sequence[int], hosts: Sequence[str], descriptors: Mapping[int, int], connector: Connector
) -> _Sockets:
    size = len(host_ids)
    names = (ctypes.c_char_p * size)(*(host.encode() for host in hosts))
    numbers = [descriptors.get(other, -1) for other in range(size)]
    functions = (_Listen(_listening(connector)), _Connect(_connecting(connector)))
    _callbacks.append(functions)
    integers = ctypes.c_int * size
    return _Sockets(rank, size, integers(*host_ids), names, integers(*numbers), *functions)


def _listening(connector: Connector) -> Callable[..., int]:
    def listen(channel: int, port: Any, message: int, message_size: int) -> int:
        def run() -> None:
            port[0] = connector.listen(channel)

        return _answered(run, message, message_size)

    return listen


def _connecting(connector: Connector) -> Callable[..., int]:
    def connect(
        channel: int, ranks: Any, ports: Any, count: int, descriptors: Any, message: int, message_size: int
    ) -> int:
        def run() -> None:
            found = connector.connect(channel, dict(zip(ranks[:count], ports[:count], strict=True)))
            for place, rank in enumerate(ranks[:count]):
                descriptors[place] = found[rank]

        return _answered(run, message, message_size)

    return connect


def _answered(run: Callable[[], None], message: int, message_size: int) -> int:
    """Runs what the engine has called; returns the code of its end, with the reason in `message`."""
    try:
        run()
    except BaseException as error:  # noqa: BLE001  (an exception cannot pass through the engine)
        if not isinstance(error, Exception):  # such as KeyboardInterrupt: `call` raises it
            _interrupts.append(error)
        told = (str(error) or type(error).__name__).encode()[: message_size - 1] + b"\0"
        ctypes.memmove(message, told, len(told))
        return next((code for code, kind in _ERRORS.items() if isinstance(error, kind)), _UNAVAILABLE)
    return 0


def gather(name: str, numbers: Sequence[int]) -> list[list[int]]:
    """Gathers numbers from all ranks, by rank; every rank must call it, with the same count.

    Raises:
        MismatchError: On every rank, if one calls another collective, or passes another count.
    """
    count, size = len(numbers), ask("size")
    gathered = (ctypes.c_int * (count * size))()
    call("tfdist_gather", name.encode(), (ctypes.c_int * count)(*numbers), count, gathered)
    return [list(gathered[rank * count : (rank + 1) * count]) for rank in range(size)]


def ask(name: str, caller: str = "") -> int:
    """One number of this process's place in the job, such as "rank".

    Args:
        name: The name of the number.
        caller: The function that errors name, if it is not the one of that name.

    Raises:
        NotInitializedError: Before `tfdist.init()`.
    """
    value = int(getattr(load(), f"tfdist_{name}")())
    if value < 0:
        raise errors.NotInitializedError(
            f"tfdist.{caller or name}() was called before tfdist.init(). Call tfdist.init() once, at the start of the "
            "script."
        )
    return value


def plan_buckets(dtypes: Sequence[str], sizes: Sequence[int], threshold: int) -> list[list[int]]:
    """Groups tensors into buckets, with the same code that a fused collective uses.

    Args:
        dtypes: Name of each tensor's dtype, such as "float32".
        sizes: Size of each tensor in bytes.
        threshold: Maximum bytes per bucket; a larger tensor gets its own.

    Returns:
        The positions of the tensors in each bucket, ascending; buckets in the order of their last tensor.

    Raises:
        ConfigError: If collectives do not support a dtype, or a number is negative.
    """
    count = len(sizes)
    names = (ctypes.c_char_p * count)(*(name.encode() for name, _ in zip(dtypes, sizes, strict=True)))
    numbers = (ctypes.c_int * count)()
    call("tfdist_plan_buckets", names, (ctypes.c_int64 * count)(*sizes), count, threshold, numbers)
    buckets: list[list[int]] = [[] for _ in range(max(numbers, default=-1) + 1)]
    for tensor, number in enumerate(numbers):
        buckets[number].append(tensor)
    return buckets


def digest(address: int, count: int) -> int:
    """A hash of the bytes at an address, as in `tfdist/csrc/core/value/digest.h`.

    Returns:
        An int64 that differs if any bit differs.
    """
    return int(load().tfdist_digest(address, count))


def describe_gpus(settings: config.Config) -> dict[str, Any]:
    """What the engine finds for GPUs: "driver", "gpus", "nccl", "compiler", "kernels".

    The entries are documented in `tfdist/csrc/nccl/gpu_report.h`; one that failed has an "error". Compiles the kernels
    if they are not cached yet, which takes seconds.

    Raises:
        BuildError: As `load`.
    """
    report = ctypes.create_string_buffer(_REPORT_BYTES)
    call("tfdist_describe_gpus", engine_settings(settings), report, _REPORT_BYTES)
    described: dict[str, Any] = json.loads(report.value.decode(errors="replace"))
    return described


def read_metrics() -> dict[str, dict[str, int]]:
    """What collectives have cost, by operation, as documented in `tfdist/csrc/core/watch/meter.h`.

    Raises:
        NotInitializedError: Before `tfdist.init()`.
    """
    text = ctypes.create_string_buffer(_MESSAGE_BYTES)
    call("tfdist_read_metrics", text, _MESSAGE_BYTES)
    if not text.value:
        raise errors.NotInitializedError(
            "tfdist.metrics() was called before tfdist.init(). Call tfdist.init() once, at the start of the script."
        )
    costs: dict[str, dict[str, int]] = json.loads(text.value)
    return costs


def read_watch(name: str) -> Watch:
    """What this process has read of the dataset watched under this name; all zero if nothing.

    Raises:
        BuildError: As `load`.
    """
    reading = Watch()
    load().tfdist_read_watch(name.encode(), ctypes.byref(reading))
    return reading


def set_service_note(service: str, note: str) -> None:
    """Notes what is wrong with a data service, such as the names of its dead workers.

    The note is included in the error if a trainer waits for too long.

    Args:
        service: "HOST:PORT" as passed to `distribute`.
        note: One or more sentences; empty removes the note.

    Raises:
        BuildError: As `load`.
    """
    load().tfdist_set_service_note(service.encode(), note.encode())


def read_serving() -> Serving:
    """What this process has served as a worker of a data service.

    Raises:
        BuildError: As `load`.
    """
    reading = Serving()
    load().tfdist_read_serving(ctypes.byref(reading))
    return reading


def set_draining(draining: bool) -> None:
    """Sets whether the datasets that this process serves stop taking further shards of the data.

    Under dynamic sharding each then ends with the shards it has, and the other workers take the rest.

    Raises:
        BuildError: As `load`.
    """
    load().tfdist_set_draining(int(draining))


def _declare(library: ctypes.CDLL) -> None:
    text, number = ctypes.c_char_p, ctypes.c_int
    numbers = ctypes.POINTER(number)
    library.tfdist_init.argtypes = [text, numbers, number, numbers, text, text, number]
    library.tfdist_init_sockets.argtypes = [ctypes.POINTER(_Sockets), text, text, number]
    library.tfdist_add_process_set.argtypes = [numbers, number, numbers, text, number]
    library.tfdist_remove_process_set.argtypes = [number, text, number]
    library.tfdist_plan_buckets.argtypes = [
        *(ctypes.POINTER(text), ctypes.POINTER(ctypes.c_int64), number, ctypes.c_int64),
        *(numbers, text, number),
    ]
    library.tfdist_describe_gpus.argtypes = [text, text, number, text, number]
    library.tfdist_tune.argtypes = [ctypes.c_int64, ctypes.c_int64, text, text, number]
    library.tfdist_shutdown.argtypes = [number, text, number]
    library.tfdist_barrier.argtypes = [text, text, number]
    library.tfdist_gather.argtypes = [text, numbers, number, numbers, text, number]
    library.tfdist_timeline_start.argtypes = [text, number, text, number]
    for name in ("timeline_stop", "shutdown_at_exit"):
        getattr(library, f"tfdist_{name}").argtypes = []
        getattr(library, f"tfdist_{name}").restype = None
    for name, argument in (("note_ended", number), ("set_calling_thread", text)):
        getattr(library, f"tfdist_{name}").argtypes = [argument]
        getattr(library, f"tfdist_{name}").restype = None
    library.tfdist_meet.argtypes = [ctypes.POINTER(_Sockets), text, number]
    for name in ("check", "check_place", "part"):
        getattr(library, f"tfdist_{name}").argtypes = [text, number]
    for name in (
        *("init", "init_sockets", "shutdown", "barrier", "check", "check_place", "part", "meet", "is_initialized"),
        *("is_homogeneous", "add_process_set", "remove_process_set", "plan_buckets", "describe_gpus"),
        *("timeline_start", "tune"),
    ):
        getattr(library, f"tfdist_{name}").restype = number
    library.tfdist_digest.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    library.tfdist_digest.restype = ctypes.c_int64
    library.tfdist_compressions.restype = ctypes.c_char_p
    library.tfdist_most_chunk_bytes.restype = ctypes.c_int64
    library.tfdist_communication_seconds.restype = ctypes.c_double
    library.tfdist_read_watch.argtypes = [text, ctypes.POINTER(Watch)]
    library.tfdist_set_service_note.argtypes = [text, text]
    library.tfdist_read_serving.argtypes = [ctypes.POINTER(Serving)]
    library.tfdist_set_draining.argtypes = [number]
    for name in ("read_watch", "set_service_note", "read_serving", "set_draining"):
        getattr(library, f"tfdist_{name}").restype = None
