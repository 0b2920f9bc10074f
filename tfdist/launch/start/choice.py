"""Which program starts the ranks, and why that one. It starts no rank itself."""

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

# By name. mpirun, the default, is the first: ranks that it starts in a job of Slurm have the variables of both.
KINDS: dict[str, type[Starter]] = {kind.name: kind for kind in (Mpirun, Srun, Jsrun)}


def allocation(wanted: str | None, environment: Mapping[str, str]) -> Allocation | None:
    """The hosts of the job that this runs in, as far as the starter puts ranks on them. Raises ConfigError."""
    found = detection.detect(environment)
    if found is None or wanted is None:
        return found
    return replace(found, hosts=KINDS[wanted].hosts_for_ranks(found.hosts))


def choose(
    wanted: str | None, call: Starter, given: Allocation | None, environment: Mapping[str, str]
) -> tuple[Starter, str]:
    """The call to make.

    Args:
        wanted: One of `KINDS`, as the user says, or None.
        call: That of mpirun.
        given: Where the hosts are from; None where the user has named them, or there are none.
        environment: Of the ranks.

    Returns:
        The call, and why it is that one; empty where nothing had to be chosen.

    Raises:
        ConfigError: If what the user wants cannot be.
    """
    manager = "" if given is None else given.manager
    tried = (kind for kind in KINDS.values() if kind.tried and kind.manager == manager)
    kind = next(tried, type(call)) if wanted is None else KINDS[wanted]
    asked = "" if wanted is None else "an option says so"
    if kind is type(call):
        return call, asked
    made = _made(kind, call, environment)
    if not isinstance(made, str):
        return made, asked or "a trial went well"
    if asked:
        raise ConfigError(f"--{kind.name} cannot be used: {made}. Omit it to start with {call.name}")
    return call, f"not by {kind.name}: {made}"


def _made(kind: type[Starter], call: Starter, environment: Mapping[str, str]) -> Starter | str:
    """The same call by another starter, or what speaks against that."""
    path = shutil.which(kind.name, path=environment.get("PATH", os.defpath))
    if not environment.get(kind.job_variable):
        return f"{kind.job_variable} is not set, so this is no job of {kind.manager}"
    if path is None:
        return f"there is no {kind.name} on PATH"
    if call.elastic:
        return f"the ranks of an elastic job outlive each other under {call.name} alone, not under {kind.name}"
    made = kind(**(vars(call) | {"path": path}))
    return made.obstacle(sys.executable, {**environment, **made.settings(environment, root=False)}) or made
