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
from tfdist.launch.start.jsrun import Jsrun, compute_hosts
from tfdist.launch.start.mpirun import Mpirun
from tfdist.launch.start.srun import Srun

# Beside mpirun, by name.
KINDS: dict[str, type[Mpirun]] = {kind.name: kind for kind in (Srun, Jsrun)}


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
        made = _made(KINDS[wanted], call, environment)
        if isinstance(made, str):
            raise ConfigError(f"--{wanted} cannot be: {made}. Without it mpirun starts the ranks")
        return made, f"--{wanted} says so"
    if given is None or given.manager != Srun.manager:
        return call, ""
    made = _made(Srun, call, environment)
    return (call, f"not by srun: {made}") if isinstance(made, str) else (made, "a trial went well")


def _made(kind: type[Mpirun], call: Mpirun, environment: Mapping[str, str]) -> Mpirun | str:
    """The same call by another starter, or what speaks against that."""
    path = shutil.which(kind.name, path=environment.get("PATH", os.defpath))
    if not environment.get(kind.job_variable):
        return f"{kind.job_variable} is not set, so this is no job of {kind.manager}"
    if path is None:
        return f"there is no {kind.name} on PATH"
    if call.elastic:
        return f"the ranks of an elastic job outlive each other under mpirun alone, not under {kind.name}"
    made = kind(**(vars(call) | {"path": path}))
    return made.obstacle(sys.executable, {**environment, **made.settings(environment, root=False)}) or made
