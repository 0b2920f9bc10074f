"""Chooses the program that starts the ranks, and says why."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace

from tfdist.errors import ConfigError
from tfdist.launch.host.cluster import detection
from tfdist.launch.host.cluster.allocation import Allocation
from tfdist.launch.start.jsrun import Jsrun
from tfdist.launch.start.mpirun import Mpirun
from tfdist.launch.start.srun import Srun
from tfdist.launch.start.starter import Starter

# By name. mpirun, the default, comes first: ranks that it starts in a Slurm job have the variables of both.
KINDS: dict[str, type[Starter]] = {kind.name: kind for kind in (Mpirun, Srun, Jsrun)}


def allocation(wanted: str | None, environment: Mapping[str, str]) -> Allocation | None:
    """The hosts of the cluster job this runs in on which the starter places ranks. Raises ConfigError."""
    found = detection.detect(environment)
    if found is None or wanted not in KINDS:
        return found
    return replace(found, hosts=KINDS[wanted].hosts_for_ranks(found.hosts))


def choose(
    wanted: str | None, call: Starter, given: Allocation | None, environment: Mapping[str, str]
) -> tuple[Starter, str]:
    """Chooses the call that starts the ranks.

    Args:
        wanted: One of `KINDS`, if the user chose one, or None.
        call: The call of mpirun.
        given: The allocation the hosts are from; None if the user named them, or there are none.
        environment: The environment of the ranks.

    Returns:
        The call, and why it was chosen; empty if there was no choice.

    Raises:
        ConfigError: If the user's choice cannot be used.
    """
    manager = "" if given is None else given.manager
    tried = (kind for kind in KINDS.values() if kind.tried and kind.manager == manager)
    # Whatever MPI its mpirun is of.
    kind = next(tried, type(call)) if wanted is None else type(call) if wanted == Mpirun.name else KINDS[wanted]
    asked = "" if wanted is None else "chosen by an option"
    if kind is type(call):
        return call, asked
    made = _made(kind, call, environment)
    if not isinstance(made, str):
        return made, asked or "a trial succeeded"
    if asked:
        raise ConfigError(f"--{kind.name} cannot be used: {made}. Omit it to start with {call.name}")
    return call, f"not {kind.name}: {made}"


def _made(kind: type[Starter], call: Starter, environment: Mapping[str, str]) -> Starter | str:
    """The same call by another starter, or why that is not possible."""
    path = shutil.which(kind.name, path=environment.get("PATH", os.defpath))
    if not environment.get(kind.job_variable):
        return f"{kind.job_variable} is not set, so this is not a job of {kind.manager}"
    if path is None:
        return f"there is no {kind.name} on PATH"
    made = kind(**(vars(call) | {"path": path}))
    return made.obstacle(sys.executable, {**environment, **made.settings(environment, root=False)}) or made
