"""Kubeflow's MPIJob: the workers, from the host file that the MPI operator mounts. Does not contact Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tfdist.launch.host import host
from tfdist.launch.host.cluster.allocation import Allocation, read_text

# What the operator sets for Open MPI 4 and 5.
VARIABLES = ("OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile")
# Where the file is mounted for an MPI that uses other variables.
MOUNTED = Path("/etc/mpi/hostfile")
_IN_KUBERNETES = "KUBERNETES_SERVICE_HOST"


def find(environment: Mapping[str, str], mounted: Path = MOUNTED) -> Allocation | None:
    """The workers with their slots; None if there is no host file. Raises ConfigError."""
    given = {name: environment[name] for name in VARIABLES if environment.get(name)}
    if not given and environment.get(_IN_KUBERNETES) and mounted.is_file():
        given = {"host file": str(mounted)}
    for name, path in given.items():
        return Allocation("MPIJob", host.parse_file(read_text(name, path), f"{name}={path}"), f"{name}={path}")
    return None
