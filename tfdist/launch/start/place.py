"""A rank's place in its job as mpirun writes it, where another program started the rank. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from tfdist.launch.host.cluster import slurm

_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE = NAMES = (
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
)
# What jsrun says, in the same order.
_JSRUN = ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE")
_STEP_TASKS = "SLURM_STEP_TASKS_PER_NODE"
_SRUN = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NODEID", _STEP_TASKS)


def started_by_mpirun(environment: Mapping[str, str]) -> bool:
    """Whether the variables of mpirun are there."""
    return bool(environment.get(_RANK))


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """What mpirun would have set beside what is there: nothing where it has, or where nobody tells the place.

    Raises:
        ConfigError: If Slurm's variables cannot be read.
    """
    if started_by_mpirun(environment):
        return {}
    if all(environment.get(name) for name in _JSRUN):
        return {name: environment[told] for name, told in zip(NAMES, _JSRUN, strict=True)}
    # In a job of Slurm they are there for a shell, too; only a rank of an MPI program has the one of PMIx.
    if not environment.get("PMIX_RANK") or not all(environment.get(name) for name in _SRUN):
        return {}
    here = slurm.counts(environment[_STEP_TASKS], _STEP_TASKS)[int(environment["SLURM_NODEID"])]
    values = (environment["SLURM_PROCID"], environment["SLURM_STEP_NUM_TASKS"], environment["SLURM_LOCALID"], str(here))
    return dict(zip(NAMES, values, strict=True))
