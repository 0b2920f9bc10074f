"""A rank's place in its job, in the variables of mpirun, whichever program started the rank."""

from __future__ import annotations

from collections.abc import Mapping

from tfdist.launch.start.choice import KINDS
from tfdist.launch.start.direct import Direct
from tfdist.launch.start.hydra import Hydra
from tfdist.launch.start.mpirun import Mpirun
from tfdist.launch.start.starter import Starter
from tfdist.system.rank import job_place

# Ours comes first: a job without MPI may run within one of MPI.
_KINDS: tuple[type[Starter], ...] = (Direct, *KINDS.values(), Hydra)
ADDRESS_VARIABLE, PORT_VARIABLE = "MASTER_ADDR", "MASTER_PORT"


def starter(environment: Mapping[str, str]) -> type[Starter] | None:
    """The program that started this rank; None if no variables describe its place.

    Raises:
        ConfigError: If the variables of a starter cannot be parsed.
    """
    return next((kind for kind in _KINDS if kind.place(environment)), None)


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables mpirun would set, even if another MPI's program started the rank; empty if its place is unknown.

    Raises:
        ConfigError: If the variables of a starter cannot be parsed.
    """
    kind = starter(environment)
    if kind is None or kind is Direct:  # without MPI, nothing may take a rank for one of MPI
        return {}
    return dict(zip(Mpirun.place_variables, kind.place(environment), strict=True))


def for_others(environment: Mapping[str, str]) -> dict[str, str]:
    """A rank's place in the variables of torch.distributed and of keras.distribution, for scripts that use these.

    The address and port of rank 0 are those that the launcher has set; nobody listens there.
    """
    of_job, of_host = job_place.of_job(environment), job_place.of_host(environment)
    address, port = environment.get(ADDRESS_VARIABLE, ""), environment.get(PORT_VARIABLE, "")
    if of_job is None or of_host is None or not address:
        return {}
    (rank, size), (local_rank, local_size) = of_job, of_host
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(local_size),
        "KERAS_DISTRIBUTION_JOB_ADDRESSES": f"[{address}]:{port}" if ":" in address else f"{address}:{port}",
        "KERAS_DISTRIBUTION_NUM_PROCESSES": str(size),
        "KERAS_DISTRIBUTION_PROCESS_ID": str(rank),
    }


def descriptors(environment: Mapping[str, str]) -> tuple[int, ...]:
    """The descriptors that a rank's process must inherit, because the starter serves its MPI by them.

    A variable of another starter is left from around the job, and its descriptor is not of this process.

    Raises:
        ConfigError: If the variables of a starter cannot be parsed.
    """
    kind = starter(environment)
    names = () if kind is None else kind.descriptor_variables
    return tuple(int(environment[name]) for name in names if environment.get(name, "").isdigit())
