"""`tfdist.run`: checks its arguments and runs the job. The launcher itself is in `tfdist.launch.run`."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfdist.errors import ConfigError
from tfdist.launch.function import parcel, session, verdict, worker
from tfdist.launch.wire.call import write_all
from tfdist.system.rank import job_place
from tfdist.system.terminal import descriptor

_TEXT: tuple[type, ...] = (str,)
_PATH: tuple[type, ...] = (str, os.PathLike)
# Accepted types of each argument that becomes a tfdistrun option. A flag may be anything that is true or false.
_VALUED: dict[str, tuple[type, ...]] = {
    "num_proc": (int,),
    "hosts": _TEXT,
    "hostfile": _PATH,
    "start_timeout": (int, float),
    "ssh_port": (int,),
    "ssh_identity_file": _PATH,
    "output_filename": _PATH,
    "mpi_args": _TEXT,
    "network_interfaces": _TEXT,
    "min_num_proc": (int,),
    "max_num_proc": (int,),
    "slots": (int,),
    "reset_limit": (int,),
    "host_discovery_script": _PATH,
}


def run(  # noqa: PLR0913 -- the signature of Horovod
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: tuple[float, float] | None = None,
    hosts: str | None = None,
    hostfile: str | os.PathLike[str] | None = None,
    host_discovery_script: str | os.PathLike[str] | None = None,
    start_timeout: float | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | os.PathLike[str] | None = None,
    disable_cache: bool | None = None,
    output_filename: str | os.PathLike[str] | None = None,
    verbose: bool | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: str | None = None,
    executable: str | os.PathLike[str] | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Calls `func(*args, **kwargs)` on `num_proc` ranks at the same time and returns the results by rank.

    You need it to train from a notebook or from within a program, when there is no script to start with `tfdistrun`.
    Each rank is a new process; `func` calls `tfdist.init()` itself. Each line that a rank prints is shown with the rank
    in front. Function, arguments and results are pickled: they pass through file descriptors on this machine, and in
    authenticated frames to other hosts; see the README of `tfdist.launch.function`.

    Args:
        func: Any function, including a lambda, a closure, or one defined in a notebook or in `__main__`. The ranks
            import the modules it uses from scratch.
        args: Its positional arguments, the same on every rank. Function and arguments may take up to 1 GiB pickled.
        kwargs: Its keyword arguments.
        num_proc: Number of ranks.
        min_num_proc: The fewest ranks that may continue when others are lost; makes the job elastic, for a `func` that
            trains with `DataParallel(elastic=True)` or `tfdist.elastic.run`. None ends the job when one is lost.
        max_num_proc: The most ranks of an elastic job; default `num_proc`, with `host_discovery_script` all slots.
        slots: Slots of a host that `host_discovery_script` prints without a number; else give them in `hosts`.
        reset_limit: How often all ranks of an elastic job may be started anew.
        cooldown_range: Seconds after which a lost host of an elastic job is used again, and the most, as it doubles.
        hosts: Hosts with the number of ranks each may run, such as `"host1:2,host2:4"`. Default: this machine.
        hostfile: A file with one host per line, as `name slots=2`; replaces `hosts`.
        host_discovery_script: A program that prints the hosts that are there now, one a line, for an elastic job.
        start_timeout: Seconds within which all ranks must have started and received the function; default 30.
        ssh_port: ssh port of the other hosts.
        ssh_identity_file: Private key for ssh.
        disable_cache: Has no effect, since checks are not cached. Prints a note if true.
        output_filename: A folder to which each rank's output is also written, as `rank.N/stdout` and `rank.N/stderr`.
        verbose: Whether to show the mpirun command and all of its output.
        use_gloo: Whether to start the ranks without MPI, connected by sockets.
        use_mpi: Whether to start with mpirun, also where another way would be chosen.
        mpi_args: Additional arguments for mpirun.
        network_interface: Deprecated name of `network_interfaces`.
        network_interfaces: Network interfaces to use, as in `"eth0,eth1"`.
        executable: The Python interpreter of the ranks: same minor version, tfdist installed. Default: this one.
        np: Deprecated name of `num_proc`.
        min_np: Deprecated name of `min_num_proc`.
        max_np: Deprecated name of `max_num_proc`.

    Returns:
        What `func` returned on each rank, up to 1 GiB pickled per rank; of an elastic job, on those that were there at
        its end, by rank.

    Raises:
        ConfigError: If an argument cannot be used, the function or an argument cannot be pickled, or this process
            is itself a rank of a job.
        RankError: If a rank was killed, exited, did not start in time, or returned something that cannot be pickled.
        Exception: The exception the function raised, from the first rank that raised one. Its `__cause__` is a
            `RankError` with the rank and its traceback; that `RankError` is raised itself if the exception cannot
            be pickled.

    Example:

    ```python
    def train(epochs):
        tfdist.init()
        ...
        return history["loss"][-1] + tfdist.rank()

    losses = tfdist.run(train, args=(3,), num_proc=2)
    ```
    """
    given = dict(locals())
    descriptor.fill_closed()
    if job_place.is_taken():
        raise ConfigError("tfdist.run starts a new job and cannot be called on a rank of a running job.")
    _refuse(given)
    given["num_proc"] = _ranks(num_proc, np)
    for name, old in (
        ("network_interfaces", "network_interface"),
        ("min_num_proc", "min_np"),
        ("max_num_proc", "max_np"),
    ):
        given[name] = renamed("tfdist.run", name, given[name], old, given[old])
    packed = parcel.pack_call(func, args, kwargs or {})
    return call_on_ranks(packed, parcel.name_of(func), option_words(given), program_of(executable))


def program_of(executable: str | os.PathLike[str] | None = None) -> list[str]:
    """The program of a rank, for an interpreter; default: this one."""
    return [os.fspath(executable or sys.executable), os.path.abspath(worker.__file__)]


def call_on_ranks(
    packed: bytes,
    name: str,
    words: Sequence[str],
    program: Sequence[str],
    setting: session.Setting | None = None,
    caller: str = "tfdist.run",
) -> list[Any]:
    """Runs a job, each rank of which calls a function.

    Args:
        packed: The function and its arguments, as by `parcel.pack_call`.
        name: Its name, for messages.
        words: Options of tfdistrun.
        program: What each rank is, as `program_of` says.
        setting: Where the job runs; default: as tfdistrun would.
        caller: What the user has called, for messages.

    Returns:
        The results by rank; of an elastic job, of the ranks that were there at its end.

    Raises:
        Exception: As `run`.
    """
    whole = [*words, "--", *program]
    with session.files(1) as (function,):
        write_all(function, packed)
        status, report, answered = session.launch(whole, verdict.ARGUMENTS, function, setting or session.Setting())
    answers = {rank: parcel.unpack_answer(data) for rank, data in answered.items()}
    return verdict.results(verdict.Job(name, status, report, answers, caller))


def option_words(given: Mapping[str, Any]) -> list[str]:
    """The arguments of `run` as tfdistrun options, in the form --name=value."""
    words = []
    for name, option in verdict.OPTIONS.items():
        value = given[name]
        if name not in _VALUED:
            words += [option] if value else []
        elif value is not None:
            if isinstance(value, bool) or not isinstance(value, _VALUED[name]):
                wanted = " or ".join(kind.__name__ for kind in _VALUED[name])
                raise ConfigError(f"tfdist.run: {name} must be {wanted}; received {value!r}.")
            words.append(f"{option}={os.fspath(value) if isinstance(value, os.PathLike) else value}")
    if given["cooldown_range"] is not None:
        words += ["--blacklist-cooldown-range", *(f"{seconds:g}" for seconds in _cooldown(given["cooldown_range"]))]
    return words


def _cooldown(value: Any) -> tuple[float, float]:
    numbers = tuple(value) if isinstance(value, (tuple, list)) else ()
    if len(numbers) != len(("first", "most")) or not all(type(each) in (int, float) for each in numbers):
        raise ConfigError(f"tfdist.run: cooldown_range must be two numbers of seconds; received {value!r}.")
    return numbers[0], numbers[1]


def _ranks(num_proc: int, np: int | None) -> int:
    if np is not None:
        warnings.warn("tfdist.run: np is deprecated, use num_proc", DeprecationWarning, stacklevel=3)
        if num_proc not in (1, np):
            raise ConfigError(f"tfdist.run: num_proc={num_proc!r} and np={np!r} differ; give only num_proc.")
    wanted = num_proc if np is None else np
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 1:
        raise ConfigError(f"tfdist.run: num_proc must be a whole number of ranks, 1 or more; received {wanted!r}.")
    return wanted


def renamed(caller: str, name: str, value: Any, old: str, former: Any) -> Any:
    """The value of an argument that may be given by its old name. Raises ConfigError if both are, and differ."""
    if former is None:
        return value
    warnings.warn(f"{caller}: {old} is deprecated, use {name}", DeprecationWarning, stacklevel=3)
    if value not in (None, former):
        raise ConfigError(f"{caller}: {name}={value!r} and {old}={former!r} differ; give only {name}.")
    return former


def check_call(function: str, func: Any, args: Any, kwargs: Any) -> None:
    """Raises ConfigError if `func` cannot be called so. `function` is what the user has called, and its argument."""
    caller = function.partition(":")[0]
    if not callable(func):
        raise ConfigError(f"{function} must be a function; received {func!r}.")
    if not isinstance(args, (tuple, list)):
        raise ConfigError(f"{caller}: args must be a tuple of arguments, as in args=(1,); received {args!r}.")
    if kwargs is not None and not (isinstance(kwargs, Mapping) and all(isinstance(name, str) for name in kwargs)):
        raise ConfigError(f"{caller}: kwargs must map names to arguments; received {kwargs!r}.")


def _refuse(given: Mapping[str, Any]) -> None:
    """Raises ConfigError for arguments that cannot be used."""
    check_call("tfdist.run: func", given["func"], given["args"], given["kwargs"])
    if given["use_gloo"] and given["use_mpi"]:
        raise ConfigError("tfdist.run: use_gloo and use_mpi cannot be combined; give only one.")
    if not isinstance(given["executable"], (str, os.PathLike, type(None))):
        raise ConfigError(
            f"tfdist.run: executable must be the path of a Python interpreter; received {given['executable']!r}."
        )
