"""PBS (OpenPBS, PBS Professional, Torque): the hosts of a job, by its node file. Asks no `pbsnodes`."""

from __future__ import annotations

from collections.abc import Mapping

from tfdist.launch.host import host
from tfdist.launch.host.cluster.allocation import Allocation, read_text

FILE = "PBS_NODEFILE"


def find(environment: Mapping[str, str]) -> Allocation | None:
    """A slot for each line of the node file; None outside of a job. Raises ConfigError."""
    path = environment.get(FILE, "")
    if not path:
        return None
    return Allocation("PBS", host.counted(read_text(FILE, path), f"{FILE}={path}"), FILE)
