"""The life cycle of one process in a job: startup, shutdown, and its place among the others."""

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
from tfdist.native import adapter, gpu, library, mpi
from tfdist.observe import stack_dump, timeline
from tfdist.protocol import member
from tfdist.system import after_import, exit_hook, process_end
from tfdist.system.rank import ancestry, job_place, tf_config
from tfdist.world import log_prefix, lone_training, mismatch, sockets, tuning
from tfdist.world import process_sets as process_set_module
from tfdist.world.process_sets import ProcessSet
from tfdist.world.roster import Roster
from tfdist.world.session import session

_logger = logging.getLogger("tfdist")
_MPI_THREAD_MULTIPLE = 3
_STARTING = (
    "in tfdist.init() for the other ranks to call it. Call it on every rank, before any work that only one rank "
    "does. With comm=[...], all ranks in the list must pass the same list"
)
_STARTED_BEFORE = (
    "an earlier program has already called tfdist.init() as rank {}, and a job can start only once per rank. "
    "So a script started by tfdistrun can run only one such program, and cannot replace itself (os.exec) after "
    "tfdist.init(). Start a separate job for each program. A process that should not be a rank can be started with "
    "subprocess after tfdist.init(): it is a world of one."
)


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Starts tfdist in this process; a second call without arguments, or with the same ones, does nothing.

    Call it once, before using any other name of tfdist. Under `tfdistrun` (or `mpirun`, `srun`) every process becomes
    one rank of the job; without a launcher the world consists of rank 0.

    If there are GPUs, each rank takes the one with its local rank: TensorFlow sees no other, and allocates its memory
    as needed. Importing tfdist already does that, unless a tensor was made before or `TFDIST_EARLY` is 0. A GPU chosen
    by a cluster manager or the script is kept. With `TFDIST_PIN_GPUS=0`, and without a launcher, the devices are left
    alone.

    From now on SIGUSR1 makes this process print the Python stacks of its threads to stderr, or to a file in
    `TFDIST_STACK_DUMP_DIR`, unless the script has its own handler for the signal.

    Args:
        comm: Which processes of the job belong together: None for all; a list of their ranks in the job, including this
            one; or an `mpi4py.MPI.Comm`, which is duplicated. Each group is its own world: `rank()` and `size()` refer
            to it, and groups train independently. The list gives the order of the ranks.
        process_sets: Groups of ranks in which collectives may run, besides all ranks: a list of `ProcessSet`, the same
            on every rank, or "dynamic" to add them later with `add_process_set`.

    Raises:
        ConfigError: If an argument or environment variable is invalid, there are fewer GPUs than ranks on this host,
            TensorFlow has already taken them all, or another program was this rank before.
        BuildError: If a shared library is missing, or there is none for the installed TensorFlow or MPI.

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
    _check_group(comm, settings)
    session.transport = _transport(handle)
    _warn(settings)
    process = _print_stacks(settings.stack_dump_folder)
    session.roster = session.roster or Roster(member.open_news())  # a second one would take reports from the first
    _connect(session.roster, ranks, handle, library.engine_settings(settings, process), settings)
    session.place = (rank(), size())
    if session.transport:
        ancestry.mark(str(rank()))
    session.arguments = (comm, process_sets)
    session.gradients = _chosen_gradients(settings)
    if session.first_rank < 0:
        session.first_rank = rank()  # of one that is apart, its own number
    if settings.autotune != "0":  # the engine has room for more than the settings say
        tuning.apply(tuning.of_settings(settings, tuning.most_chunk_bytes()))
    if settings.pin_gpus and job_place.is_rank(os.environ):  # also what a rank starts: it takes its GPU
        _pin_gpu()
    try:
        if settings.timeline:
            timeline.start_timeline(settings.timeline, settings.timeline_mark_cycles)
        process_set_module.start(_wanted_sets(process_sets, settings), comm)
    except errors.TfdistError:
        with contextlib.suppress(errors.TfdistError):  # the first error is the one that explains
            shutdown()
        raise
    if not member.report(member.JOINED) and settings.elastic:
        _logger.warning(
            "this rank cannot report to tfdistrun that it has joined: a program between them closes unknown file "
            "descriptors. A lost rank will end the job. Start the script directly with tfdistrun."
        )
    if settings.metrics_port is not None:
        _serve_metrics(settings.metrics_host, settings.metrics_port)
    _logger.info("started, rank %d of %d, local rank %d of %d", rank(), size(), local_rank(), local_size())
    if session.early and rank() == 0:
        changes, name = "; ".join(session.early), config.variable("early")
        _logger.info(
            "importing tfdist has changed this process: %s. Set %s=0 to postpone that to tfdist.init()", changes, name
        )


def _chosen_gradients(settings: config.Config) -> str:
    """Empty where nobody has chosen, neither by the variable nor by wanting a script unchanged."""
    is_chosen = config.is_set("gradients") or settings.gradients != config.GRADIENTS[0]
    return settings.gradients if is_chosen else ""


def _wanted_sets(process_sets: Any, settings: config.Config) -> Any:
    return "dynamic" if process_sets is None and settings.dynamic_process_sets else process_sets


def _check_group(comm: Any, settings: config.Config) -> None:
    if settings.elastic and comm is not None:
        raise errors.ConfigError(
            f"init(comm=...) received {comm!r} in an elastic job, whose ranks change, so a group of them cannot be "
            "kept. Omit comm, or start the job without --elastic."
        )


def _connect(roster: Roster, ranks: list[int], handle: int | None, engine: bytes, settings: config.Config) -> None:
    """Loads the libraries that this process needs, and starts the engine."""
    launched = session.transport == job_place.MPI
    if session.apart >= 0:
        session.introduced = True
    if launched:
        mpi.connect()
    # What does not fit it is reported here, and not by the first step; a model that is loaded may hold the ops.
    after_import.after_import("tensorflow", adapter.ops)
    session.started = True
    limit = settings.stall_shutdown_seconds
    if session.transport == job_place.SOCKETS and session.apart < 0:
        with _bounded(_STARTING, settings.stall_warning_seconds, 2 * limit):  # it has deadlines of its own
            sockets.connect(roster, ranks, engine, settings)
        return
    with _bounded(_STARTING, settings.stall_warning_seconds, limit):
        library.call(
            "tfdist_init",
            b"mpi" if launched else b"self",
            (ctypes.c_int * len(ranks))(*ranks),
            len(ranks),
            None if handle is None else ctypes.byref(ctypes.c_int(handle)),
            engine,
        )
    if launched and not ranks:
        _check_launcher((rank(), size()) if handle is None else mpi.place_of_mpi4py())
    if launched and handle is None:  # else the ranks have other numbers than for the launcher
        roster.follow(ranks or range(size()))


def _check_launcher(found: tuple[int, int] | None) -> None:
    """Where MPI is another one than the launcher's, it takes every process for a world of one."""
    told = job_place.of_job()
    if told is None or told[1] == 1 or found is None or found[1] != 1:
        return
    library.call("tfdist_shutdown", 1)  # MPI sees nobody to wait for, and removes its files
    raise errors.ConfigError(
        f"the launcher started this process as rank {told[0]} of {told[1]}, but to {mpi.version()} it is rank "
        f"{found[0]} of {found[1]}: the launcher is of another MPI. Start the job with the launcher of this one, "
        "or set TFDIST_MPI_HOME to the prefix of the launcher's."
    )


def _take_level(level: str) -> None:
    """Sets the level from the variable, if set; a level set by the script stays."""
    if config.is_set("log_level") and _logger.level == logging.NOTSET:
        if not _logger.hasHandlers():
            handler = logging.StreamHandler()
            handler.addFilter(lambda record: not logging.root.handlers)  # those that the script may yet make are enough
            _logger.addHandler(handler)  # Python alone shows warnings and worse
        _logger.setLevel(level.upper())


def shutdown() -> None:
    """Shuts down tfdist in this process: waits until every rank has called it, then ends MPI if `init` started it.

    Runs automatically when the interpreter exits. Afterwards collectives raise an error, and `init` cannot start MPI
    again.

    Raises:
        MismatchError: If another rank is still in a collective; names the rank and the collective.
    """
    if is_initialized():
        if server := sys.modules.get("tfdist.observe.metrics_server"):  # whoever serves has imported it
            server.stop()
        _await_handles()
        process_set_module.forget()
        session.tuning = session.place = None  # the settings hold again
        try:
            library.call("tfdist_shutdown", 1)
        finally:
            member.report(member.PARTED)


def _await_handles() -> None:
    """Waits for the collectives of PyTorch that were started: their thread would meet others in their place."""
    if handles := sys.modules.get("tfdist.torch.collective.handle"):
        handles.synchronize_all()


def renew() -> None:
    """Continues with the ranks that the launcher announces, after one was lost or for others that come. Each of them
    calls it; they are renumbered. A process that has prepared apart joins them.

    Raises:
        PeerLostError: If the launcher announces none in time.
        TfdistError: If there are process sets.
    """
    settings = config.read()
    waiting = "for the other ranks to continue with those that are left, or that come"
    library.call("tfdist_part")
    _await_handles()  # they have failed, and are not to be announced to other ranks
    with _bounded(waiting, settings.stall_warning_seconds, 2 * settings.stall_shutdown_seconds):
        assert session.roster is not None
        sockets.reconnect(session.roster, settings)
    session.apart = -1
    session.place = (rank(), size())


def meets() -> bool:
    """Whether this rank is to meet others at its next commit, as `renew` does."""
    return session.roster is not None and session.roster.meets


def retires() -> bool:
    """Whether the launcher has asked this rank to leave at its next commit."""
    return session.roster is not None and session.roster.retires


def is_initialized() -> bool:
    """Whether `init` has been called, and `shutdown` has not."""
    return bool(library.load().tfdist_is_initialized())


def rank() -> int:
    """This process's number in the job: 0 to `size() - 1`. One that none has had until a newcomer joins the others."""
    own = library.ask("rank")
    return own if session.apart < 0 else session.apart


def first_rank() -> int:
    """The rank that this process started with, unique among the processes started with it, even after ranks were
    lost.
    """
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
    """The index of this host among those that have a process with this local rank."""
    return library.ask("cross_rank")


def cross_size() -> int:
    """The number of hosts that have a process with this local rank."""
    return library.ask("cross_size")


def is_homogeneous() -> bool:
    """Whether every host runs the same number of processes."""
    return bool(library.ask("is_homogeneous"))


def communication_seconds() -> float:
    """Seconds this process has spent in collectives since `init`, including waiting for the others."""
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
        how = "without MPI" if gloo_enabled() else "without a launcher and uses no MPI"
        raise errors.ConfigError(f"this process was started {how}. Start it with: tfdistrun --mpi")
    return mpi.thread_level() >= _MPI_THREAD_MULTIPLE


def mpi_built() -> bool:
    """Whether this build has an MPI transport: always."""
    return True


def mpi_enabled() -> bool:
    """Whether MPI carries the collectives of this process."""
    return session.transport == job_place.MPI


def nccl_built() -> bool:
    """Whether this build has NCCL collectives: always, since NCCL is loaded when a tensor on a GPU needs it.

    `tfdist doctor` reports which NCCL is found on this machine, and whether a GPU can be used.
    """
    return True


def cuda_built() -> bool:
    """Whether this build has CUDA kernels: always, since they are compiled for the GPU that is found.

    Whether TensorFlow has CUDA is another question: `tf.test.is_built_with_cuda()`. `tfdist doctor` answers both.
    """
    return True


def gloo_built() -> bool:
    """Whether this build has a transport that needs no MPI: always. It is tfdist's own, in the place of Gloo."""
    return True


def gloo_enabled() -> bool:
    """Whether sockets carry the collectives of this process, as after `tfdistrun --no-mpi` (or `--gloo`)."""
    return session.transport == job_place.SOCKETS


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
    """MPI waits for all ranks without a deadline and cannot be interrupted: report, then end the process."""

    def say(seconds: float, what: str) -> None:
        sys.stderr.write(
            f"{log_prefix.text()}: {what}: rank {job_place.rank()} has waited {seconds:g} seconds {waiting}.\n"
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
    """Makes SIGUSR1 print the stacks; returns the id of this process, or 0 if the signal is taken."""
    if stack_dump.install(folder):
        return os.getpid()
    _logger.warning(
        "the script has its own handler for SIGUSR1, so the signal does not print the stacks of this process. Use "
        "py-spy dump, or remove the handler."
    )
    return 0


def _serve_metrics(host: str, port: int) -> None:
    """Uses the index among all processes of the host: with `comm` several have the same local rank."""
    from tfdist.observe import metrics_server  # it reads rank and size from here

    place = job_place.of_host() or (local_rank(), local_size())
    try:
        metrics_server.start(host, port, place[0])
    except errors.ConfigError:
        library.call("tfdist_shutdown", 0)  # waits for nobody: the others may have found a port
        raise


def _warn(settings: config.Config) -> None:
    """Warns of settings that would be silently ignored."""
    first = not settings.launched and job_place.rank() in ("?", "0")  # else another has said so
    lines = config.misspelled() + config.horovod_leftovers() if first else []
    if gpu.has_driver():
        lines.append(gpu.unseen_by_profiler())
    for line in filter(None, lines):
        _logger.warning("%s", line)


def _pin_gpu() -> None:
    """Uses the index among all processes of the host: those of `comm` may not be the only ones."""
    if not gpu.has_driver():
        return
    if "tfdist.torch" in sys.modules and "tensorflow" not in sys.modules:
        # TensorFlow need not be there, and PyTorch's GPU is the script's to choose.
        after_import.after_import("tensorflow", _pin_gpu)
        return
    place = job_place.of_host(os.environ) or (local_rank(), local_size())
    try:
        chosen = gpu.pin(adapter.import_tensorflow().config, *place)
    except errors.ConfigError:
        library.call("tfdist_shutdown", 0)  # waits for nobody: the others may have found a GPU
        raise
    _logger.info("uses %s", chosen or "no GPU")


def _advise() -> None:
    """Warns of mistakes that nothing else shows: sharded data on ranks that then train independently, workers without
    work.
    """
    lone_training.tell()
    settings = config.read()
    if rank() == 0 and settings.autotune != "0" and not session.settings_tuned:
        _logger.warning(
            "%s=%s is set, but nothing was tuned. Add the callback that tunes: model.fit(..., "
            "callbacks=[tfdist.callbacks.DataParallel()])",
            *(config.variable("autotune"), settings.autotune),
        )
    service = settings.data_service
    watch = sys.modules.get("tfdist.data_service.trainer.watch")  # whoever reads from a service has imported it
    if rank() == 0 and service and not any(watched.service for watched in (watch.watches() if watch else ())):
        _logger.warning(
            "this job has a data service at %s, but this process read nothing from it. To run preprocessing there, "
            "put it before distribute: dataset = tfdist.data_service.distribute(dataset, job_name=...)",
            service,
        )


def _check_again(comm: Any, process_sets: Any) -> None:
    given = {"comm": comm, "process_sets": process_sets}
    for (name, value), first in zip(given.items(), session.arguments, strict=True):
        if value is not None and value is not first and value != first:
            raise errors.ConfigError(
                f"tfdist.init() has already been called with {name}={first!r}, so {name}={value!r} comes too late. "
                "Call it with its arguments before anything else: tfdist.shard and the callbacks call it without "
                "arguments."
            )


def _members(comm: Any) -> tuple[list[int], int | None]:
    """Ranks in the job, or the Fortran handle of a communicator, from the argument `comm` of `init`.

    A handle may be negative: those of MPICH are.
    """
    if comm is None:
        return [], None
    if hasattr(comm, "py2f"):
        return [], int(comm.py2f())
    try:
        ranks = [operator.index(rank) for rank in comm]
    except (TypeError, ValueError):
        ranks = []
    if not ranks:
        raise errors.ConfigError(
            "init(comm=...) must be None, a list of one or more ranks of the job, or an mpi4py communicator; "
            f"received {comm!r}."
        )
    return ranks, None


def _watch_exit() -> None:
    """Shuts the job down cleanly when the interpreter exits, but without waiting on an exception or nonzero status.

    From the first line of `init` on: the other ranks may wait there for one whose arguments are rejected.
    """
    if session.watches_exit:
        return
    session.watches_exit = True
    session.mpi4py_ends_mpi = job_place.transport() == job_place.MPI and "mpi4py.MPI" in sys.modules
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
            _await_handles()
            library.load().tfdist_shutdown_at_exit()
        elif status:
            library.call("tfdist_shutdown", 0)
        else:
            well = _end_in_order()
    member.report(member.PARTED)
    if mirror := sys.modules.get("tfdist.storage.mirror"):  # whoever writes to a store has imported it
        mirror.close_all()
    if not well or (status and session.mpi4py_ends_mpi):
        # Whoever leaves early has not ended well, and only this changes the status. And mpi4py, where it started MPI,
        # would now wait in MPI_Finalize for ranks that may never come.
        _leave(status or 1)


def _leave_forked(rank_process: int) -> None:
    """In a process forked from a rank, mpi4py would also end MPI, and wait there for the other ranks."""
    if os.getpid() == rank_process:
        return
    status = process_end.status()
    if status is None:
        sys.stderr.write(
            f"tfdist: process {os.getpid()} was forked from a rank and ends with a SystemExit that was not raised by "
            "sys.exit, so its exit status is 1.\n"
        )
    _leave(1 if status is None else status)


def _leave(status: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _end_in_order() -> bool:
    """Whether the other ranks are shutting down too."""
    _advise()
    try:
        shutdown()
    except errors.TfdistError as error:
        _logger.error("%s", mismatch.explained(str(error)))
        return not isinstance(error, errors.MismatchError)  # the others still call collectives, and fail
    return True


def _transport(handle: int | None) -> str:
    """What carries the collectives of this process; empty if it is a world of one, as one started by a rank is.

    Raises:
        ConfigError: If another program was this rank before, or `init` received a communicator in a job without MPI.
    """
    transport = job_place.transport()
    if not transport:
        # What cannot be used is an error, and no world of one.
        tf_config.find(ancestry.own_environment())
        job_place.refuse_horovodrun(ancestry.own_environment())
    if transport:
        if not session.started and (ancestry.is_again() or not member.is_first()):
            raise errors.ConfigError(_STARTED_BEFORE.format(job_place.rank()))
        if handle is not None and transport != job_place.MPI:
            raise errors.ConfigError(
                "init received an mpi4py communicator, but this job was started without MPI, so every process is alone "
                "in it. Start the job with MPI (tfdistrun --mpi), or pass a list of ranks."
            )
        if member.is_newcomer() and not session.started:
            session.apart = int(job_place.rank())
        return transport
    if rank := ancestry.origin():
        _logger.warning(
            "process %d was started by rank %s of a job after tfdist.init(), so it is not a rank but a world of one. "
            "Call collectives in the rank itself.",
            *(os.getpid(), rank),
        )
    return ""
