"""Which program starts the ranks: mpirun, Slurm's srun or LSF's jsrun, and why that one. It starts no rank itself."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace

from tfdist.errors import ConfigError
from tfdist.launch.host.cluster import detection
from tfdist.launch.host.cluster.allocation import Allocation
from tfdist.launch.start import srun
from tfdist.launch.start.jsrun import Jsrun, compute_hosts
from tfdist.launch.start.mpirun import Mpirun
from tfdist.launch.start.srun import Srun

_JOBS = {"srun": ("Slurm", "SLURM_JOB_ID"), "jsrun": ("LSF", "LSB_JOBID")}


def allocation(wanted: str | None, environment: Mapping[str, str]) -> Allocation | None:
    """The hosts of the job that this runs in, as far as the starter puts ranks on them. Raises ConfigError."""
    found = detection.detect(environment)
    return replace(found, hosts=compute_hosts(found.hosts)) if found is not None and wanted == "jsrun" else found


def choose(
    wanted: str | None, call: Mpirun, given: Allocation | None, environment: Mapping[str, str]
) -> tuple[Mpirun, str]:
    """The call to make.

    Args:
        wanted: "mpirun", "srun", "jsrun" or None, as the user says.
        call: That of mpirun.
        given: Where the hosts are from; None where the user has named them, or there are none.
        environment: Of the ranks.

    Returns:
        The call, and why it is that one; empty where nothing had to be chosen.

    Raises:
        ConfigError: If what the user wants cannot be.
    """
    if wanted == "mpirun":
        return call, "--mpi says so"
    if wanted is not None:
        if reason := _shortage(wanted, call, environment):
            raise ConfigError(f"--{wanted} cannot be: {reason}. Without it mpirun starts the ranks")
        return _made(wanted, call, environment), f"--{wanted} says so"
    if given is None or given.manager != "Slurm":
        return call, ""
    reason = _shortage("srun", call, environment)
    return (call, f"not by srun: {reason}") if reason else (_made("srun", call, environment), "a trial went well")


def _made(name: str, call: Mpirun, environment: Mapping[str, str]) -> Mpirun:
    kind = {"srun": Srun, "jsrun": Jsrun}[name]
    return kind(**(vars(call) | {"path": _path(name, environment)}))


def _path(name: str, environment: Mapping[str, str]) -> str | None:
    return shutil.which(name, path=environment.get("PATH", os.defpath))


def _shortage(name: str, call: Mpirun, environment: Mapping[str, str]) -> str:
    """What speaks against a starter; empty if nothing does."""
    manager, variable = _JOBS[name]
    path = _path(name, environment)
    if not environment.get(variable):
        return f"{variable} is not set, so this is no job of {manager}"
    if path is None:
        return f"there is no {name} on PATH"
    if call.elastic:
        return f"the ranks of an elastic job outlive each other under mpirun alone, not under {name}"
    if name == "jsrun":
        return ""
    return srun.shortage(
        path, sys.executable, call.processes, {**environment, **call.settings(environment, root=False)}
    )
