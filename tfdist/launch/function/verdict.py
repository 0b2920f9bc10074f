"""Turns what a finished job left behind into its results, or into the exception to raise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from tfdist.errors import ConfigError, RankError
from tfdist.launch.function import parcel
from tfdist.launch.function.parcel import Failed, Returned
from tfdist.launch.option.spelling import in_arguments

# The tfdistrun option for each argument of `run`; the launcher's messages use the options.
OPTIONS = {
    "num_proc": "-np",
    "hosts": "-H",
    "hostfile": "--hostfile",
    "start_timeout": "--start-timeout",
    "ssh_port": "--ssh-port",
    "ssh_identity_file": "--ssh-identity-file",
    "disable_cache": "--disable-cache",
    "output_filename": "--output-filename",
    "verbose": "--verbose",
    "use_gloo": "--gloo",
    "use_mpi": "--mpi",
    "mpi_args": "--mpi-args",
    "network_interfaces": "--network-interfaces",
    "min_num_proc": "--min-np",
    "max_num_proc": "--max-np",
    "slots": "--slots-per-host",
    "reset_limit": "--reset-limit",
    "host_discovery_script": "--host-discovery-script",
}
ARGUMENTS = {option: argument for argument, option in OPTIONS.items()} | {
    "-np/-n/--num-proc": "num_proc",
    "-p/--ssh-port": "ssh_port",
    "--verbose": "verbose=True",
    "--elastic": "min_num_proc",
    "--blacklist-cooldown-range": "cooldown_range",
}


class AbsentError(RankError):
    """A host, or its agent, was not there in time."""


@dataclass(frozen=True)
class Job:
    """What a finished job left behind.

    Attributes:
        name: The function's name.
        status: The launcher's exit status; negative for a signal that killed it.
        report: What it reported; None if it could not.
        answers: The answers of ranks by number; None if one is incomplete.
        caller: What the user has called.
    """

    name: str
    status: int
    report: Mapping[str, Any] | None
    answers: Mapping[int, Returned | Failed | None]
    caller: str = "tfdist.run"


def results(job: Job) -> list[Any]:
    """The results by rank. Raises the exception of the first rank that failed, or says why there is no result."""
    if job.report is None:
        raise RankError(
            f"{job.name}: the launcher of its job was killed (status {job.status}), so the state of its ranks is "
            "unknown. They are being terminated; check the kernel log (dmesg) for what killed the launcher."
        )
    if "error" in job.report:
        kind = AbsentError if job.report["lost"] else ConfigError
        raise kind(f"{job.caller}: {in_arguments(job.report['error'], ARGUMENTS)}")
    first = job.report["first"]
    if first is None and job.status == 0:
        return [_result(job, rank) for rank in job.report["ranks"]]
    if first is None:
        raise RankError(f"{job.name} did not finish:\n{in_arguments(job.report['explanation'], ARGUMENTS)}")
    answer = job.answers.get(first)
    if isinstance(answer, Failed):
        _raise_failure(job, first, answer)
    raise RankError(f"{job.name}: {_ended(job, first)}", first)


def _where(job: Job, rank: int) -> str:
    assert job.report is not None
    size = job.report["size"]  # unless it changed
    return f"rank {rank}{f' of {size}' if size else ''} on {job.report['hosts'][rank]}"


def _result(job: Job, rank: int) -> Any:
    answer = job.answers.get(rank)
    if not isinstance(answer, Returned):
        raise RankError(f"{job.name}: the result of {_where(job, rank)} is missing or truncated", rank)
    try:
        return answer.load()
    except Exception as error:
        raise RankError(
            f"{job.name}: the result of {_where(job, rank)} cannot be unpickled here: {type(error).__name__}: {error}. "
            "Return types that this process can also import, such as numbers and numpy arrays.",
            rank,
        ) from error


def _raise_failure(job: Job, rank: int, failed: Failed) -> NoReturn:
    where = _where(job, rank)
    if failed.how == parcel.EXITED:
        raise RankError(
            f"{job.name} called sys.exit({failed.text}) on {where}, so it has no result. Return a value, or raise an "
            f"exception.\n{failed.trace}",
            rank,
        )
    if failed.how == parcel.UNSENDABLE:
        raise RankError(
            f"{job.name} returned, on {where}, an object of type {failed.kind} that cannot be sent: {failed.text}. "
            "Return numbers, text, numpy arrays, or containers of them.",
            rank,
        )
    if failed.how == parcel.UNLOADABLE:
        raise RankError(
            f"{job.name} or its arguments cannot be unpickled on {where}: {failed.kind}: {failed.text}. The modules "
            "it uses must be importable there; cloudpickle.register_pickle_by_value(module) sends one along.\n"
            f"{failed.trace}",
            rank,
        )
    told = RankError(f"{job.name} failed on {where}:\n{failed.trace}", rank)
    error = failed.load()
    if error is None:
        raise told
    raise error from told


def _ended(job: Job, rank: int) -> str:
    assert job.report is not None
    if job.answers.get(rank) is None and job.report["codes"][rank] == 0:
        return (
            f"the process of {_where(job, rank)} exited with code 0 before the function returned. The function "
            "must not exit its process, as os._exit does."
        )
    before = "after" if job.answers.get(rank) is not None else "before"
    explanation = in_arguments(job.report["explanation"], ARGUMENTS)
    return f"the process of {_where(job, rank)} ended {before} the function returned.\n{explanation}"
