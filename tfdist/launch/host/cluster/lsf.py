"""IBM Spectrum LSF: the hosts of a job, from its host file or host list. Does not run `bhosts`."""

from __future__ import annotations

from collections.abc import Mapping

from tfdist.errors import ConfigError
from tfdist.launch.host import host
from tfdist.launch.host.cluster.allocation import Allocation, read_text

FILE = "LSB_DJOB_HOSTFILE"
LIST = "LSB_MCPU_HOSTS"


def find(environment: Mapping[str, str]) -> Allocation | None:
    """One slot per line of the file, else what the list says; None outside a job. Raises ConfigError."""
    path, listed = environment.get(FILE, ""), environment.get(LIST, "")
    if path:
        return Allocation("LSF", host.counted(read_text(FILE, path), f"{FILE}={path}"), FILE)
    if not listed:
        return None
    words = listed.split()
    if len(words) % 2:
        raise ConfigError(f"{LIST}={listed}: expected names with numbers, such as: host1 2 host2 4")
    return Allocation("LSF", host.listed(zip(words[::2], words[1::2], strict=True), f"{LIST}={listed}"), LIST)
