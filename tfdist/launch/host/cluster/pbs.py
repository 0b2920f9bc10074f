"""PBS (OpenPBS, PBS Professional, Torque): the hosts of a job, from its node file. Does not run `pbsnodes`."""

from __future__ import annotations

from collections.abc import Mapping

from tfdist.launch.host import host
from tfdist.launch.host.cluster.allocation import Allocation, read_text

FILE = "PBS_NODEFILE"


def find(environment: Mapping[str, str]) -> Allocation | None:
    """One slot per line of the node file; None outside a job. Raises ConfigError."""
    path = environment.get(FILE, "")
    if not path:
        return None
    return Allocation("PBS", host.counted(read_text(FILE, path), f"{FILE}={path}"), FILE)
