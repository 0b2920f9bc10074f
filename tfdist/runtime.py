"""The life of one process in a job: starting, ending, and where this process stands among the others."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from tfdist import _native, config, errors

_logger = logging.getLogger("tfdist")
_events: set[str] = set()
# What `remember` is told.
SHARDED = "the data was sharded"
REDUCED = "something was reduced over the ranks"
_state: dict[str, bool] = {"failing": False, "hooked": False, "mpi4py_ends_mpi": False}


def init(comm: None = None, process_sets: None = None) -> None:
    """Starts tfdist in this process; a second call does nothing.

    Call it once, before any other name of tfdist is used. Under `tfdistrun` (or `mpirun`, `srun`) every process
    becomes one rank of the job; without a launcher the world has the one rank 0.

    Args:
        comm: Only None, all processes of the job.
        process_sets: Only None.

    Raises:
        ConfigError: If an argument or environment variable cannot be honoured.
        BuildError: If the shared library does not fit the installed TensorFlow or MPI.

    Example:

    ```python
    import tfdist

    tfdist.init()
    print(tfdist.rank(), "of", tfdist.size())
    ```
    """
    for name, value in (("comm", comm), ("process_sets", process_sets)):
        if value is not None:
            raise errors.ConfigError(f"init({name}=...) takes only None in this version; received {value!r}.")
    if is_initialized():
        return
    settings = config.read()
    _logger.setLevel(settings.log_level.upper())
    launched = config.started_by_launcher()
    _state["mpi4py_ends_mpi"] = launched and "mpi4py.MPI" in sys.modules
    with _bounded_start(settings.stall_warning_seconds, settings.stall_shutdown_seconds):
        _native.call(
            "tfdist_init",
            b"mpi" if launched else b"self",
            settings.stall_warning_seconds,
            settings.stall_shutdown_seconds,
            settings.fusion_threshold,
        )
    _watch_exit()
    _logger.info("rank %d of %d, local rank %d of %d", rank(), size(), local_rank(), local_size())


def shutdown() -> None:
    """Ends tfdist in this process: waits until every rank has come here, then ends MPI if `init` started it.

    Runs by itself when the interpreter exits. After it, collectives raise an error; `init` cannot start MPI again.

    Raises:
        MismatchError: If another rank is still in a collective; names the rank and the collective.
    """
    if is_initialized():
        _native.call("tfdist_shutdown", 1)


def is_initialized() -> bool:
    """Whether `init` has been called, and `shutdown` has not."""
    return bool(_native.load().tfdist_is_initialized())


def rank() -> int:
    """This process's number in the job: 0 to `size() - 1`."""
    return _ask("rank")


def size() -> int:
    """The number of processes in the job."""
    return _ask("size")


def local_rank() -> int:
    """This process's number on its host."""
    return _ask("local_rank")


def local_size() -> int:
    """The number of the job's processes on this host."""
    return _ask("local_size")


def cross_rank() -> int:
    """The number of this host among those that have a process with this local rank."""
    return _ask("cross_rank")


def cross_size() -> int:
    """The number of hosts that have a process with this local rank."""
    return _ask("cross_size")


def is_homogeneous() -> bool:
    """Whether every host runs the same number of processes."""
    return bool(_ask("is_homogeneous"))


def communication_seconds() -> float:
    """Seconds this process has spent inside collectives since `init`, waiting for the others included."""
    _ask("rank")
    return float(_native.load().tfdist_communication_seconds())


def mpi_built() -> bool:
    """Whether this build has an MPI transport: always."""
    return True


def mpi_enabled() -> bool:
    """Whether MPI carries the collectives of this process."""
    return config.started_by_launcher()


def nccl_built() -> bool:
    """Whether this build has an NCCL transport: not in this version."""
    return False


def cuda_built() -> bool:
    """Whether this build has CUDA kernels: not in this version."""
    return False


def gloo_built() -> bool:
    """Always False: the name is kept for scripts written for Horovod."""
    return False


def gloo_enabled() -> bool:
    """Always False: the name is kept for scripts written for Horovod."""
    return False


def ccl_built() -> bool:
    """Always False: the name is kept for scripts written for Horovod."""
    return False


def ddl_built() -> bool:
    """Always False: the name is kept for scripts written for Horovod."""
    return False


def rocm_built() -> bool:
    """Always False: the name is kept for scripts written for Horovod."""
    return False


def remember(event: str) -> None:
    """Notes that something was done in this process, for the advice at its end."""
    _events.add(event)


@contextlib.contextmanager
def _bounded_start(warning_seconds: float, limit_seconds: float) -> Iterator[None]:
    """MPI_Init waits for all ranks without a deadline, and nothing can call it off: report, then end the process."""

    def say(seconds: float, what: str) -> None:
        sys.stderr.write(
            f"tfdist: {what}: rank {config.launcher_rank()} has waited {seconds:g} seconds in tfdist.init() for the "
            "other ranks to call it. Call it on every rank, before work that only one rank does.\n"
        )
        sys.stderr.flush()

    def give_up() -> None:
        say(limit_seconds, "StallError")
        os._exit(1)

    timers = [threading.Timer(limit_seconds, give_up)]
    if warning_seconds:
        timers.append(threading.Timer(warning_seconds, say, (warning_seconds, "still starting")))
    for timer in timers:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()


def _advise() -> None:
    """The mistake that nothing else shows: data dealt out to ranks that then train alone."""
    if rank() == 0 and SHARDED in _events and REDUCED not in _events:
        _logger.warning(
            "tfdist: the data was sharded, but no gradient was ever reduced: every rank trained alone, on its part. "
            "Add the callback: model.fit(..., callbacks=[tfdist.callbacks.DataParallel()])"
        )


def _ask(name: str) -> int:
    value = int(getattr(_native.load(), f"tfdist_{name}")())
    if value < 0:
        raise errors.NotInitializedError(
            f"tfdist.{name}() was called before tfdist.init(). Call tfdist.init() once, at the start of the script."
        )
    return value


def _watch_exit() -> None:
    """Ends the job in order when the interpreter exits, and without waiting when it exits by an exception."""
    if _state["hooked"]:
        return
    _state["hooked"] = True
    previous = sys.excepthook

    def remember(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Any:
        _state["failing"] = True
        return previous(kind, error, trace)

    sys.excepthook = remember
    atexit.register(_end)


def _end() -> None:
    if not is_initialized():
        return
    if not _state["failing"]:
        _advise()
        try:
            shutdown()
            return
        except errors.TfdistError as error:
            _logger.error("tfdist: %s", error)
    else:
        _native.call("tfdist_shutdown", 0)
    if _state["mpi4py_ends_mpi"]:
        # It started MPI, and would now wait in MPI_Finalize for ranks that may never come.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
