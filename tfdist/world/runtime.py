"""The life of one process in a job: starting, ending, and where this process stands among the others."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import logging
import operator
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from tfdist import config, errors
from tfdist.native import gpu, library
from tfdist.observe import stack_dump, timeline
from tfdist.protocol import member
from tfdist.system import ancestry, exit_hook, process_end
from tfdist.world import log_prefix, tuning
from tfdist.world import process_sets as process_set_module
from tfdist.world.process_sets import ProcessSet
from tfdist.world.session import session

_logger = logging.getLogger("tfdist")
_MPI_THREAD_MULTIPLE = 3
_STARTING = (
    "in tfdist.init() for the other ranks to call it. Call it on every rank, before work that only one rank does; all "
    "ranks in a list given as comm=[...] give the same list"
)
_STARTED_BEFORE = (
    "a program before this one has called tfdist.init() as rank {}, and MPI starts once for each rank of a job. So one "
    "program can be run by a script that tfdistrun starts, and it cannot replace itself (os.exec) after tfdist.init(). "
    "Start a job for each, or what shall be no rank by subprocess after tfdist.init(): there tfdist is a world of one."
)


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Starts tfdist in this process; a second call without arguments, or with the same ones, does nothing.

    Call it once, before any other name of tfdist is used. Under `tfdistrun` (or `mpirun`, `srun`) every process
    becomes one rank of the job; without a launcher the world has the one rank 0.

    Where there are GPUs, each rank takes the one with its number on the host: TensorFlow sees no other, and takes its
    memory as it needs it. Importing tfdist has done that already, if no tensor was made before and `TFDIST_EARLY` is
    not 0. A GPU that a cluster
    manager or the script has chosen is kept, `TFDIST_PIN_GPUS=0` leaves the devices alone, and without a launcher they
    are left alone too.

    From now on SIGUSR1 makes this process print the Python stacks of its threads to stderr, or to a file in
    `TFDIST_STACK_DUMP_DIR`; where the script has a handler of its own for it, that one stays.

    Args:
        comm: Which processes of the job belong together: None for all; a list of their ranks in the job, this one among
            them; or an `mpi4py.MPI.Comm`, which is duplicated. Each group is a world of its own: `rank()` and `size()`
            count in it, and groups train independently of each other. The list gives the order of the ranks.
        process_sets: Groups of ranks that collectives may run in besides all ranks: a list of `ProcessSet`, the same
            on every rank, or "dynamic" to make them later with `add_process_set`.

    Raises:
        ConfigError: If an argument or environment variable cannot be honoured, there are fewer GPUs than ranks on this
            host, TensorFlow has taken them all already, or another program was this rank before.
        BuildError: If the shared library does not fit the installed TensorFlow or MPI.

    Example:

    ```python
    import tfdist

    tfdist.init()
    print(tfdist.rank(), "of", tfdist.size())
    ```
    """
    _watch_exit()
    process_set_module.check(process_sets)
    ranks, handle = _members(comm)
    if is_initialized():
        _check_again(comm, process_sets)
        return
    settings = config.read()
    _take_level(settings.log_level)
    launched = _is_rank()
    _warn(settings)
    process = _print_stacks(settings.stack_dump_folder)
    session.started = True
    with _bounded(_STARTING, settings.stall_warning_seconds, settings.stall_shutdown_seconds):
        library.call(
            "tfdist_init",
            b"mpi" if launched else b"self",
            (ctypes.c_int * len(ranks))(*ranks),
            len(ranks),
            handle,
            library.engine_settings(settings, process),
        )
    session.place = (rank(), size())
    if launched:
        ancestry.mark(str(rank()))
        _listen(ranks, handle, settings)
    session.arguments = (comm, process_sets)
    if session.first_rank < 0:
        session.first_rank = rank()
    if settings.autotune != "0":  # the engine has room for more than the settings say
        tuning.apply(tuning.of_settings(settings, tuning.most_chunk_bytes()))
    if settings.pin_gpus and config.started_by_launcher(os.environ):  # also what a rank starts: it takes its GPU
        _pin_gpu()
    try:
        if settings.timeline:
            timeline.start_timeline(settings.timeline, settings.timeline_mark_cycles)
        process_set_module.start(process_sets, comm)
    except errors.TfdistError:
        with contextlib.suppress(errors.TfdistError):  # the first error is the one that explains
            shutdown()
        raise
    if not member.report(member.JOINED) and settings.elastic:
        _logger.warning(
            "this rank cannot report to tfdistrun that it has joined: something between them closes descriptors that "
            "it does not know. A lost rank will end the job; start the script by tfdistrun directly."
        )
    if settings.metrics_port is not None:
        _serve_metrics(settings.metrics_host, settings.metrics_port)
    _logger.info("started, rank %d of %d, local rank %d of %d", rank(), size(), local_rank(), local_size())
    if session.early and rank() == 0:
        changes, name = "; ".join(session.early), config.variable("early")
        _logger.info("importing tfdist has changed this process: %s. %s=0 leaves that for later", changes, name)


def _take_level(level: str) -> None:
    """What the variable says, where it is set; a level that the script has set stays."""
    if config.is_set("log_level") and _logger.level == logging.NOTSET:
        if not _logger.hasHandlers():
            handler = logging.StreamHandler()
            handler.addFilter(lambda record: not logging.root.handlers)  # those that the script may yet make are enough
            _logger.addHandler(handler)  # Python alone shows warnings and worse
        _logger.setLevel(level.upper())


def shutdown() -> None:
    """Ends tfdist in this process: waits until every rank has come here, then ends MPI if `init` started it.

    Runs by itself when the interpreter exits. After it, collectives raise an error; `init` cannot start MPI again.

    Raises:
        MismatchError: If another rank is still in a collective; names the rank and the collective.
    """
    if is_initialized():
        if server := sys.modules.get("tfdist.observe.metrics_server"):  # whoever serves has imported it
            server.stop()
        process_set_module.forget()
        session.tuning = session.place = None  # the settings hold again
        try:
            library.call("tfdist_shutdown", 1)
        finally:
            member.report(member.PARTED)


def shrink() -> None:
    """Goes on with the ranks that live, after one was lost. Each of them calls it; they are counted anew.

    Raises:
        ConfigError: Where the transport cannot go on, such as an MPI without ULFM.
        TfdistError: Where there are process sets.
    """
    settings = config.read()
    waiting = (
        "after a rank was lost for the other ranks to go on. A rank that hangs holds them up; look for it in the output"
    )
    with _bounded(waiting, settings.stall_warning_seconds, settings.stall_shutdown_seconds):
        library.call("tfdist_shrink")
    session.place = (rank(), size())


def is_initialized() -> bool:
    """Whether `init` has been called, and `shutdown` has not."""
    return bool(library.load().tfdist_is_initialized())


def rank() -> int:
    """This process's number in the job: 0 to `size() - 1`."""
    return library.ask("rank")


def first_rank() -> int:
    """The rank that this process started with, which no other process of its start has, also where ranks were lost."""
    rank()
    return session.first_rank


def size() -> int:
    """The number of processes in the job."""
    return library.ask("size")


def local_rank() -> int:
    """This process's number on its host."""
    return library.ask("local_rank")


def local_size() -> int:
    """The number of the job's processes on this host."""
    return library.ask("local_size")


def cross_rank() -> int:
    """The number of this host among those that have a process with this local rank."""
    return library.ask("cross_rank")


def cross_size() -> int:
    """The number of hosts that have a process with this local rank."""
    return library.ask("cross_size")


def is_homogeneous() -> bool:
    """Whether every host runs the same number of processes."""
    return bool(library.ask("is_homogeneous"))


def communication_seconds() -> float:
    """Seconds this process has spent inside collectives since `init`, waiting for the others included."""
    library.ask("rank")
    return float(library.load().tfdist_communication_seconds())


def mpi_threads_supported() -> bool:
    """Whether several threads may use MPI at once, so that mpi4py and tfdist can be mixed freely.

    Raises:
        NotInitializedError: Before `init`.
        ConfigError: If this process uses no MPI.
    """
    library.ask("rank")
    if not mpi_enabled():
        raise errors.ConfigError("this process was started without a launcher and uses no MPI.")
    return library.mpi_thread_level() >= _MPI_THREAD_MULTIPLE


def mpi_built() -> bool:
    """Whether this build has an MPI transport: always."""
    return True


def mpi_enabled() -> bool:
    """Whether MPI carries the collectives of this process."""
    return config.started_by_launcher()


def nccl_built() -> bool:
    """Whether this build has collectives of NCCL: always, since NCCL is looked for when a GPU's tensor needs it.

    `tfdist doctor` says which NCCL is found on this machine, and whether a GPU can be used.
    """
    return True


def cuda_built() -> bool:
    """Whether this build has CUDA kernels: always, since they are compiled for the GPU that is found.

    Whether TensorFlow has CUDA is another question: `tf.test.is_built_with_cuda()`. `tfdist doctor` answers both.
    """
    return True


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


@contextlib.contextmanager
def _bounded(waiting: str, warning_seconds: float, limit_seconds: float) -> Iterator[None]:
    """MPI waits for all ranks without a deadline, and nothing can call it off: report, then end the process."""

    def say(seconds: float, what: str) -> None:
        sys.stderr.write(
            f"{log_prefix.text()}: {what}: rank {config.launcher_rank()} has waited {seconds:g} seconds {waiting}.\n"
        )
        sys.stderr.flush()

    def give_up() -> None:
        say(limit_seconds, "StallError")
        os._exit(1)

    timers = [threading.Timer(limit_seconds, give_up)]
    if warning_seconds:
        timers.append(threading.Timer(warning_seconds, say, (warning_seconds, "still waiting")))
    for timer in timers:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()


def _print_stacks(folder: str) -> int:
    """The id of this process if SIGUSR1 makes it print its stacks; else 0."""
    if stack_dump.install(folder):
        return os.getpid()
    _logger.warning(
        "the script has a handler of its own for SIGUSR1, which stays: the signal does not print the stacks of this "
        "process. Use py-spy dump, or let the script leave SIGUSR1 alone."
    )
    return 0


def _serve_metrics(host: str, port: int) -> None:
    """By the number among all processes of the host: with `comm` several have the same local rank."""
    from tfdist.observe import metrics_server  # it reads rank and size from here

    place = config.launcher_local_place() or (local_rank(), local_size())
    try:
        metrics_server.start(host, port, place[0])
    except errors.ConfigError:
        library.call("tfdist_shutdown", 0)  # waits for nobody: the others may have found a port
        raise


def _warn(settings: config.Config) -> None:
    """Of what will be ignored without a word."""
    first = not settings.launched and config.launcher_rank() in ("?", "0")  # else another has said so
    lines = config.misspelled() if first else []
    if gpu.has_driver():
        lines.append(gpu.unseen_by_profiler())
    for line in filter(None, lines):
        _logger.warning("%s", line)


def _pin_gpu() -> None:
    """By the number among all processes of the host: those of `comm` may not be the only ones."""
    if not gpu.has_driver():
        return
    place = config.launcher_local_place(os.environ) or (local_rank(), local_size())
    try:
        chosen = gpu.pin(library.import_tensorflow().config, *place)
    except errors.ConfigError:
        library.call("tfdist_shutdown", 0)  # waits for nobody: the others may have found a GPU
        raise
    _logger.info("uses %s", chosen or "no GPU")


def _advise() -> None:
    """The mistakes that nothing else shows: data dealt out to ranks that then train alone, workers without work."""
    if rank() == 0 and session.data_sharded and not session.gradients_reduced:
        _logger.warning(
            "the data was sharded, but no gradient was ever reduced: every rank trained alone, on its part. "
            "Add the callback: model.fit(..., callbacks=[tfdist.callbacks.DataParallel()])"
        )
    settings = config.read()
    if rank() == 0 and settings.autotune != "0" and not session.settings_tuned:
        _logger.warning(
            "%s=%s was set, but nothing was tuned. Add the callback that does it: "
            "model.fit(..., callbacks=[tfdist.callbacks.DataParallel()])",
            *(config.variable("autotune"), settings.autotune),
        )
    service = settings.data_service
    watch = sys.modules.get("tfdist.data_service.trainer.watch")  # whoever reads from a service has imported it
    if rank() == 0 and service and not any(watched.service for watched in (watch.watches() if watch else ())):
        _logger.warning(
            "this job has a data service at %s, and this process read nothing from it. What shall run there "
            "comes before distribute: dataset = tfdist.data_service.distribute(dataset, job_name=...)",
            service,
        )


def _check_again(comm: Any, process_sets: Any) -> None:
    given = {"comm": comm, "process_sets": process_sets}
    for (name, value), first in zip(given.items(), session.arguments, strict=True):
        if value is not None and value is not first and value != first:
            raise errors.ConfigError(
                f"tfdist.init() has been called already, with {name}={first!r}; {name}={value!r} comes too late. Call "
                "it with its arguments before anything else: tfdist.shard and the callbacks call it without any."
            )


def _members(comm: Any) -> tuple[list[int], int]:
    """Ranks in the job, or a Fortran handle of a communicator: what `comm` of `init` says."""
    if comm is None:
        return [], -1
    if hasattr(comm, "py2f"):
        return [], int(comm.py2f())
    try:
        ranks = [operator.index(rank) for rank in comm]
    except (TypeError, ValueError):
        ranks = []
    if not ranks:
        raise errors.ConfigError(
            "init(comm=...) takes None, a list of one or more ranks of the job, or an mpi4py communicator; "
            f"received {comm!r}."
        )
    return ranks, -1


def _watch_exit() -> None:
    """Ends the job in order when the interpreter exits, and without waiting when it exits by an exception or a status.

    From the first line of `init` on: the other ranks may wait there for one whose arguments are refused.
    """
    if session.watches_exit:
        return
    session.watches_exit = True
    session.mpi4py_ends_mpi = config.started_by_launcher() and "mpi4py.MPI" in sys.modules
    process_end.watch()
    exit_hook.register(_end)
    if session.mpi4py_ends_mpi:
        atexit.register(_leave_forked, os.getpid())


def _end() -> None:
    status = process_end.status()
    if status is None and session.mpi4py_ends_mpi:
        status = 0  # it will have ended MPI when the status is known
    well = True
    if session.started and is_initialized():
        if status is None:
            library.load().tfdist_shutdown_at_exit()
        elif status:
            library.call("tfdist_shutdown", 0)
        else:
            well = _end_in_order()
    member.report(member.PARTED)
    if not well or (status and session.mpi4py_ends_mpi):
        # Whoever leaves early has not ended well, and only this changes the status. And mpi4py, where it started MPI,
        # would now wait in MPI_Finalize for ranks that may never come.
        _leave(status or 1)


def _leave_forked(rank_process: int) -> None:
    """In a process that a rank has forked mpi4py would end MPI, too, and wait there for the other ranks."""
    if os.getpid() == rank_process:
        return
    status = process_end.status()
    if status is None:
        sys.stderr.write(
            f"tfdist: process {os.getpid()} was forked from a rank, and ends by a SystemExit that sys.exit has not "
            "raised: its status is given as 1.\n"
        )
    _leave(1 if status is None else status)


def _leave(status: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _end_in_order() -> bool:
    """Whether the other ranks come to their end, too."""
    _advise()
    try:
        shutdown()
    except errors.TfdistError as error:
        _logger.error("%s", error)
        return not isinstance(error, errors.MismatchError)  # the others still call collectives, and fail
    return True


def _listen(ranks: list[int], handle: int, settings: config.Config) -> None:
    """Has waits for ranks fail of which the launcher says that their processes have ended without a word.

    Args:
        ranks: The members among all ranks of the job, by their numbers here; empty for all.
        handle: As of `_members`.
        settings: Those in force.
    """
    if handle >= 0 or settings.elastic:
        return  # the ranks have other numbers than for the launcher, or MPI tells of losses
    note = library.load().tfdist_note_ended

    def run() -> None:
        for rank in member.ended_ranks():
            if not ranks or rank in ranks:
                note(ranks.index(rank) if ranks else rank)

    threading.Thread(target=run, name="tfdist-launcher", daemon=True).start()


def _is_rank() -> bool:
    """Whether this process is to be a rank of a job. One that a rank has started is none.

    Raises:
        ConfigError: Where another program was this rank before.
    """
    if config.started_by_launcher():
        if not session.started and (ancestry.is_again() or not member.is_first()):
            raise errors.ConfigError(_STARTED_BEFORE.format(config.launcher_rank()))
        return True
    if rank := ancestry.origin():
        _logger.warning(
            "process %d was started by rank %s of a job, after tfdist.init() there, and is no rank itself: here the "
            "world has one rank. What all ranks do together is called in the rank.",
            *(os.getpid(), rank),
        )
    return False
