"""`tfdist.spark.run`: a job whose ranks are children of Spark's tasks, launched by the driver."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TextIO

from tfdist.errors import ConfigError, RankError
from tfdist.launch.function import function_job, parcel
from tfdist.launch.function.session import Setting
from tfdist.launch.host import host
from tfdist.launch.wire.call import anonymous_file, write_all
from tfdist.protocol import mesh
from tfdist.spark import check, task
from tfdist.spark.stage import Stage
from tfdist.spark.task import Offer
from tfdist.system.network import endpoint

_CALLER = "tfdist.spark.run"
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
        env: More environment variables for the ranks. They also get the driver's `TF_*`, `NCCL_*` and `TFDIST_*`, and
            the rest from their executor.
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
    function_job.check_call(f"{_CALLER}: fn", fn, args, kwargs)
    _refuse(use_mpi, extra_mpi_args, start_timeout, env, {"stdout": stdout, "stderr": stderr})
    context = check.application(_CALLER)
    ranks = check.ranks(_CALLER, context, num_proc)
    packed, name = parcel.pack_call(fn, args, kwargs or {}), parcel.name_of(fn)
    key = secrets.token_hex(32)
    with _key_file(key) as key_file, _door(context) as door:
        launcher = endpoint.text((_driver(context), door.getsockname()[1]))
        words = [f"-np={ranks}", f"--agents={ranks}", f"--listen={endpoint.text(door.getsockname()[:2])}"]
        words += [f"--key-file=/proc/self/fd/{key_file}", f"--start-timeout={start_timeout or _START_TIMEOUT_S:g}"]
        words += [f"--network-interfaces={nics if isinstance(nics, str) else ','.join(nics)}"] if nics else []
        words += [f"--export={','.join(env)}"] if env else []
        words += ["--prefix-output-with-timestamp"] if prefix_output_with_timestamp else []
        words += ["--verbose"] if verbose >= _MUCH else []
        with Stage(context, Offer(launcher, key, ranks)) as stage:
            setting = Setting(door, key_file, dict(env or {}), stdout, stderr, stage.is_wanted)
            program = task.PROGRAM if executable is None else function_job.program_of(executable)
            try:
                return function_job.call_on_ranks(packed, name, ranks, words, program, setting, _CALLER)
            except (RankError, ConfigError) as error:
                stage.wait(_CAUSE_S if type(error) is RankError else 0.0)
                if not stage.is_wanted():  # so the launcher was ended, and has nothing to say
                    why = stage.problem or stage.said
                    raise RankError(f"{_CALLER}: Spark did not run the tasks of {name}: {why}") from None
                if not stage.problem:
                    raise
                raise RankError(f"{error}\nSpark says: {stage.problem}", getattr(error, "rank", None)) from error


@contextlib.contextmanager
def _key_file(key: str) -> Iterator[int]:
    """A descriptor of a file without a name that only this user may read: nothing is left if the driver is killed."""
    descriptor = anonymous_file()
    try:
        os.fchmod(descriptor, 0o600)
        write_all(descriptor, key.encode())
        yield descriptor
    finally:
        os.close(descriptor)


def _refuse(
    use_mpi: bool | None, extra_mpi_args: str | None, start_timeout: Any, env: Any, streams: Mapping[str, Any]
) -> None:
    for name, stream in streams.items():
        if stream is not None and not callable(getattr(stream, "write", None)):
            raise ConfigError(f"{_CALLER}: {name} must be an open text file or stream; received {stream!r}.")
    if use_mpi or extra_mpi_args:
        raise ConfigError(f"{_CALLER}: ranks under Spark connect without MPI. Omit use_mpi and extra_mpi_args.")
    texts = isinstance(env, Mapping) and all(isinstance(each, str) for pair in env.items() for each in pair)
    if env is not None and not texts:
        raise ConfigError(f"{_CALLER}: env must map names to texts; received {env!r}.")
    good = isinstance(start_timeout, (int, float)) and not isinstance(start_timeout, bool) and start_timeout > 0
    if start_timeout is not None and not good:
        raise ConfigError(
            f"{_CALLER}: start_timeout must be a number of seconds, more than 0; received {start_timeout!r}."
        )


def _driver(context: Any) -> str:
    return str(context.getConf().get("spark.driver.host", "127.0.0.1"))


def _door(context: Any) -> Any:
    """Where the agents come: the address at which executors reach the driver, or the one that it binds to."""
    bound = str(context.getConf().get("spark.driver.bindAddress", "") or _driver(context))
    try:
        return mesh.listen(host.address(bound))
    except OSError as error:
        raise ConfigError(
            f"{_CALLER}: cannot listen at {bound}, the address of Spark's driver: {error.strerror}. Set "
            "spark.driver.bindAddress to an address of this machine"
        ) from None
