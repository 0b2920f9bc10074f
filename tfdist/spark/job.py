"""`tfdist.spark.run` and `run_elastic`: jobs whose ranks are children of Spark's tasks, launched by the driver."""

from __future__ import annotations

import io
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TextIO

from tfdist.errors import ConfigError, RankError
from tfdist.launch.function import function_job, parcel, session, verdict
from tfdist.launch.function.embedded import (
    Offer,
    agent_words,
    check_refused,
    check_seconds,
    check_variables,
    interface_words,
    program_of,
)
from tfdist.launch.host import host
from tfdist.protocol import mesh
from tfdist.spark import check
from tfdist.spark.stage import Stage
from tfdist.system.network import endpoint

_START_TIMEOUT_S = 600.0
_MUCH = 2
# How long Spark may take to say why an executor was lost.
_CAUSE_S = 5.0


def run(  # noqa: PLR0913 -- the signature of Horovod
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    start_timeout: float | None = None,
    use_mpi: bool | None = None,
    use_gloo: bool | None = None,
    extra_mpi_args: str | None = None,
    env: Mapping[str, str] | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    verbose: int = 1,
    nics: str | Sequence[str] | None = None,
    prefix_output_with_timestamp: bool = False,
    executable: str | os.PathLike[str] | None = None,
) -> list[Any]:
    """Calls `fn(*args, **kwargs)` on `num_proc` ranks on Spark's executors, and returns the results by rank.

    The tasks are of one barrier stage: all run at the same time. Each starts a rank as a new process, which ends with
    it; `fn` calls `tfdist.init()` itself. The ranks connect by sockets, and what they print is shown by the driver with
    the rank in front.

    Args:
        fn: Any function, including a lambda, a closure, or one defined in a notebook.
        args: Its positional arguments, the same on every rank. Function and arguments may take up to 1 GiB pickled.
        kwargs: Its keyword arguments.
        num_proc: Number of ranks; default: the application's `defaultParallelism`.
        start_timeout: Seconds within which all ranks must have started; default 600.
        use_mpi: Must not be true: ranks under Spark connect without MPI.
        use_gloo: Has no effect, because they do so anyway.
        extra_mpi_args: Must be None.
        env: More environment variables for the ranks. They replace the driver's `TF_*`, `NCCL_*`, `TFDIST_*` and
            `HOROVOD_*`, which ranks also get, and these replace what their executor has.
        stdout: Takes what the ranks print; default: this process's own.
        stderr: Takes their error output.
        verbose: 2 or more also shows how the job is started.
        nics: Network interfaces for the ranks, as "eth0,eth1" or a list.
        prefix_output_with_timestamp: Whether to start each line of output with the time.
        executable: The Python interpreter of the ranks; default: that of Spark's tasks (`PYSPARK_PYTHON`), which must
            have tfdist and the same minor version as that of the driver.

    Returns:
        What `fn` returned on each rank, up to 1 GiB pickled per rank.

    Raises:
        ConfigError: Before anything is submitted, if an argument cannot be used, no application runs, dynamic
            allocation is on, or the executors have too few slots.
        BuildError: If pyspark is missing.
        RankError: If a rank or its executor was lost; with what Spark says about it.
        Exception: The exception that `fn` raised, from the first rank that raised one. Its `__cause__` is a `RankError`
            with the rank and its traceback.

    Example:

    ```python
    def train(epochs):
        tfdist.init()
        ...
        return history["loss"][-1]

    losses = tfdist.spark.run(train, args=(3,), num_proc=4)
    ```
    """
    terms = _Terms("tfdist.spark.run", start_timeout, env, stdout, stderr, verbose, nics, prefix_output_with_timestamp)
    function_job.check_call(f"{terms.caller}: fn", fn, args, kwargs)
    if use_mpi or extra_mpi_args:
        raise ConfigError(f"{terms.caller}: ranks under Spark connect without MPI. Omit use_mpi and extra_mpi_args.")
    if not isinstance(executable, (str, os.PathLike, type(None))):
        raise ConfigError(
            f"{terms.caller}: executable must be the path of a Python interpreter; received {executable!r}."
        )
    terms.check()
    context = check.application(terms.caller)
    ranks = check.ranks(terms.caller, context, num_proc)
    call = _Call(parcel.pack_call(fn, args, kwargs or {}), parcel.name_of(fn), program_of(executable))
    return _run(context, terms, call, check.Sizes(ranks, ranks, ranks), elastic=False)


def run_elastic(  # noqa: PLR0913 -- the signature of Horovod
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    start_timeout: float | None = None,
    elastic_timeout: float | None = None,
    reset_limit: int | None = None,
    env: Mapping[str, str] | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    verbose: int = 1,
    nics: str | Sequence[str] | None = None,
    prefix_output_with_timestamp: bool = False,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Calls `fn(*args, **kwargs)` on ranks that may be lost and that others may join while they train.

    `fn` trains with `tfdist.callbacks.DataParallel(elastic=True)`, or with `tfdist.elastic.run`. The tasks are ordinary
    ones of a single stage, so it works with dynamic allocation as well. When an executor is lost, the ranks that are
    left continue within a second; Spark tries its tasks again, and their ranks join the others at a commit.

    Args:
        fn: Any function, including a lambda, a closure, or one defined in a notebook.
        args: Its positional arguments, the same on every rank. Function and arguments may take up to 1 GiB pickled.
        kwargs: Its keyword arguments.
        num_proc: Number of ranks to start with; default: the application's `defaultParallelism`.
        min_num_proc: The fewest ranks that may continue; with fewer the job ends. Default 1.
        max_num_proc: The most ranks, and so the number of tasks; default `num_proc`.
        start_timeout: Seconds within which the first `num_proc` ranks must have started; default 600.
        elastic_timeout: Must be None: ranks never wait for others to come.
        reset_limit: Must be None: ranks are never started anew because others are lost.
        env: More environment variables for the ranks, as of `run`.
        stdout: Takes what the ranks print; default: this process's own.
        stderr: Takes their error output.
        verbose: 2 or more also shows how the job is started.
        nics: Network interfaces for the ranks, as "eth0,eth1" or a list.
        prefix_output_with_timestamp: Whether to start each line of output with the time.
        min_np: Deprecated name of `min_num_proc`.
        max_np: Deprecated name of `max_num_proc`.

    Returns:
        What `fn` returned on each rank that was there at the end, by rank.

    Raises:
        ConfigError: Before anything is submitted, if an argument cannot be used, no application runs, speculation is
            on, or the executors have too few slots and dynamic allocation is off.
        BuildError: If pyspark is missing.
        RankError: If fewer than `min_num_proc` ranks are left, or Spark gives up a task (`spark.task.maxFailures`).
        Exception: The exception that `fn` raised, if no rank could continue.

    Example:

    ```python
    losses = tfdist.spark.run_elastic(train, args=(3,), num_proc=4, min_num_proc=2, max_num_proc=8)
    ```
    """
    caller = "tfdist.spark.run_elastic"
    terms = _Terms(caller, start_timeout, env, stdout, stderr, verbose, nics, prefix_output_with_timestamp)
    function_job.check_call(f"{caller}: fn", fn, args, kwargs)
    check_refused(caller, {"elastic_timeout": elastic_timeout, "reset_limit": reset_limit})
    terms.check()
    context = check.application(caller)
    least = function_job.renamed(caller, "min_num_proc", min_num_proc, "min_np", min_np)
    most = function_job.renamed(caller, "max_num_proc", max_num_proc, "max_np", max_np)
    sizes = check.sizes(caller, context, least, num_proc, most)
    call = _Call(parcel.pack_call(fn, args, kwargs or {}), parcel.name_of(fn), program_of())
    return _run(context, terms, call, sizes, elastic=True)


@dataclass(frozen=True)
class _Terms:
    """What `run` and `run_elastic` have in common, as their users have given it."""

    caller: str
    start_timeout: float | None
    env: Mapping[str, str] | None
    stdout: TextIO | None
    stderr: TextIO | None
    verbose: int
    nics: str | Sequence[str] | None
    timestamps: bool

    def check(self) -> None:
        """Raises ConfigError."""
        for name, stream in (("stdout", self.stdout), ("stderr", self.stderr)):
            is_binary = isinstance(stream, (io.RawIOBase, io.BufferedIOBase))
            if stream is not None and (is_binary or not callable(getattr(stream, "write", None))):
                raise ConfigError(f"{self.caller}: {name} must be an open text file or stream; received {stream!r}.")
        check_variables(f"{self.caller}: env", self.env or {})
        check_seconds(f"{self.caller}: start_timeout", self.seconds)
        interface_words(f"{self.caller}: nics", self.nics)

    @property
    def seconds(self) -> float:
        """How long the ranks may take to start."""
        return _START_TIMEOUT_S if self.start_timeout is None else self.start_timeout

    def words(self) -> list[str]:
        """As options of tfdistrun."""
        words = [f"--start-timeout={self.seconds:g}", *interface_words(f"{self.caller}: nics", self.nics)]
        words += ["--prefix-output-with-timestamp"] if self.timestamps else []
        return words + (["--verbose"] if self.verbose >= _MUCH else [])


class _Call(NamedTuple):
    """A function with its arguments, as it is sent; its name; and the program of a rank."""

    packed: bytes
    name: str
    program: Sequence[str]


def _run(context: Any, terms: _Terms, call: _Call, sizes: check.Sizes, elastic: bool) -> list[Any]:
    """Has Spark run as many tasks as there may be ranks, and these call the function; returns the results by rank."""
    key = secrets.token_hex(32)
    with session.key_file(key) as key_file, _door(terms.caller, context) as door:
        launcher = endpoint.text((_driver(context), door.getsockname()[1]))
        env = dict(terms.env or {})
        words = [*agent_words(sizes.start, endpoint.text(door.getsockname()[:2]), key_file, env), *terms.words()]
        words += [f"--min-np={sizes.least}", f"--max-np={sizes.most}"] if elastic else []
        with Stage(context, Offer(launcher, key), sizes.most, elastic) as stage:
            setting = session.Setting(door, key_file, env, terms.stdout, terms.stderr, stage.is_wanted)
            try:
                return function_job.call_on_ranks(call.packed, call.name, words, call.program, setting, terms.caller)
            except verdict.AbsentError:
                stage.wait(_CAUSE_S)
                advice = (
                    "Wait until the application has as many free slots, ask for fewer ranks with num_proc, or raise "
                    "start_timeout"
                )
                raise RankError(
                    f"{terms.caller}: not all of the {sizes.start} tasks ran within {terms.seconds:g} s. "
                    f"{stage.problem or stage.said_alone or advice}"
                ) from None
            except (RankError, ConfigError) as error:
                stage.wait(_CAUSE_S if type(error) is RankError else 0.0)
                if not stage.is_wanted():  # so the launcher was ended, and has nothing to say
                    why = stage.problem or stage.said
                    raise RankError(f"{terms.caller}: Spark did not run the tasks of {call.name}: {why}") from None
                if not stage.problem:
                    raise
                raise RankError(f"{error}\nSpark says: {stage.problem}", getattr(error, "rank", None)) from error


def _driver(context: Any) -> str:
    return str(context.getConf().get("spark.driver.host", "127.0.0.1"))


def _door(caller: str, context: Any) -> Any:
    """Where the agents come: the address at which executors reach the driver, or the one that it binds to."""
    bound = str(context.getConf().get("spark.driver.bindAddress", "") or _driver(context))
    try:
        return mesh.listen(host.address(bound))
    except OSError as error:
        raise ConfigError(
            f"{caller}: cannot listen at {bound}, the address of Spark's driver: {error.strerror}. Set "
            "spark.driver.bindAddress to an address of this machine"
        ) from None
