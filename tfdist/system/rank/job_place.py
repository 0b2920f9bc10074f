"""The place of this process in its job, from the variables of whoever started it. Connects to nobody.

Whoever comes first in this list counts: `tfdistrun --no-mpi`, MPI's launchers (also of `tfdistrun`), torchrun and
others that set RANK and WORLD_SIZE, and TF_CONFIG. Child processes of a rank see none of them (`ancestry`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from tfdist.errors import ConfigError
from tfdist.system.rank import ancestry, tf_config

# What carries the collectives of a process.
MPI, SOCKETS = "mpi", "socket"
# Rank, number of ranks, and both within the host: set by `tfdistrun` for a job without MPI.
OWN = ("TFDIST_RANK", "TFDIST_SIZE", "TFDIST_LOCAL_RANK", "TFDIST_LOCAL_SIZE")
_OPEN_MPI = tuple(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))
_MPICH = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
_SLURM = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
_LSF = ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE")
_TORCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_HOROVODRUN = ("HOROVOD_RANK", "HOROVOD_SIZE")
# The pipe between a rank and its supervisor.
_PIPE = "TFDIST_MEMBER_PIPE"
_LAUNCHED = "TFDIST_LAUNCHED"
# What MPI launchers other than tfdistrun set in the environment of the processes they start.
_MPI_MARKS = ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK")


def transport(environment: Mapping[str, str] | None = None) -> str:
    """`MPI` or `SOCKETS` if this process is one rank of a job, else empty.

    Args:
        environment: Mapping to read, here and below; default `os.environ`, for child processes of a rank without its
            own variables.
    """
    source = ancestry.own_environment() if environment is None else environment
    if by_tfdistrun(source):
        return SOCKETS
    if _by_mpi(source):
        return MPI
    return SOCKETS if by_torchrun(source) or task(source) is not None else ""


def by_tfdistrun(environment: Mapping[str, str]) -> bool:
    """Whether `tfdistrun` has started this process as a rank without MPI, and not only left its variables around."""
    return all(environment.get(name) for name in (*OWN, _PIPE))


def _by_mpi(environment: Mapping[str, str]) -> bool:
    own = environment.get(_LAUNCHED) == "1"
    return own or any(environment.get(name) for name in _MPI_MARKS)


def by_torchrun(environment: Mapping[str, str]) -> bool:
    """Whether torchrun, or whoever sets its variables, has started this process as one of several."""
    place = _first_pair(environment, _TORCH[:2])
    return place is not None and place[1] > 1


def task(environment: Mapping[str, str]) -> tf_config.Task | None:
    """The task of this process by TF_CONFIG; None if there is none, or `tf_config.find` refuses it."""
    with contextlib.suppress(ConfigError):
        return tf_config.find(environment)
    return None


def refuse_horovodrun(environment: Mapping[str, str]) -> None:
    """Raises ConfigError if `horovodrun` has started this process as one of several, which cannot find each other."""
    place = _first_pair(environment, _HOROVODRUN)
    if place is not None and place[1] > 1:
        raise ConfigError(
            f"this process is rank {place[0]} of {place[1]} of horovodrun ({' and '.join(_HOROVODRUN)} are set), whose "
            "ranks tfdist cannot connect: each would train alone. Start the script with tfdistrun, which takes "
            "horovodrun's options, as in tfdistrun -np 4 python train.py; or unset these variables."
        )


def is_taken(environment: Mapping[str, str] | None = None) -> bool:
    """Whether this process is a rank that cannot start a job of its own: launched as one, or started by `init`.

    The variables of torchrun and TF_CONFIG alone do not count: they also stand around notebooks and tools.
    """
    source = ancestry.own_environment() if environment is None else environment
    launched = by_tfdistrun(source) or _by_mpi(source)
    return launched or (environment is None and ancestry.is_again())


def rank(environment: Mapping[str, str] | None = None) -> str:
    """The rank the launcher assigned to this process, before the job starts; "?" if unknown."""
    source = ancestry.own_environment() if environment is None else environment
    names = (OWN[0], _OPEN_MPI[0], "PMIX_RANK", _MPICH[0])
    if found := next((source[name] for name in names if source.get(name)), ""):
        return found
    place = of_job(source)
    return "?" if place is None else str(place[0])


def of_job(environment: Mapping[str, str] | None = None) -> tuple[int, int] | None:
    """This process's rank and the number of ranks, before the job starts; None if the launcher does not set both.

    Counts all processes of the job, even if `init(comm=...)` splits them.
    """
    source = ancestry.own_environment() if environment is None else environment
    pairs = [OWN[:2], _OPEN_MPI[:2], _MPICH[:2]]
    if source.get("PMIX_RANK"):  # srun sets its own for programs without MPI as well
        pairs += [_SLURM, _LSF]
    if (found := _first_pair(source, *pairs)) is not None or transport(source) != SOCKETS:
        return found
    if by_torchrun(source):
        return _first_pair(source, _TORCH[:2])
    own = task(source)
    return None if own is None else (own.rank, len(own.addresses))


def of_host(environment: Mapping[str, str] | None = None) -> tuple[int, int] | None:
    """This process's local rank, and how many processes the launcher started on its host; None if it sets neither.

    Counts all processes of the job, even if `init(comm=...)` splits them.
    """
    source = ancestry.own_environment() if environment is None else environment
    found = _first_pair(source, OWN[2:], _OPEN_MPI[2:], _MPICH[2:])
    if found is not None or transport(source) != SOCKETS:
        return found
    own = None if by_torchrun(source) else task(source)
    return _first_pair(source, _TORCH[2:]) if own is None else own.local


def _first_pair(source: Mapping[str, str], *pairs: tuple[str, ...]) -> tuple[int, int] | None:
    """The values of the first two variables that are both whole numbers."""
    for names in pairs:
        number, count = (source.get(name, "") for name in names)
        if number.isdecimal() and count.isdecimal():
            return int(number), int(count)
    return None


def is_rank(environment: Mapping[str, str] | None = None) -> bool:
    """Whether this process is one rank of a job that a launcher started."""
    return bool(transport(environment))
