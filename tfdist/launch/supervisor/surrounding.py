"""The environment of a rank's process, from that of its supervisor."""

from __future__ import annotations

import os
from collections.abc import Mapping

from tfdist.launch.host.core import available, thread_defaults
from tfdist.launch.start import place
from tfdist.launch.wire.ticket import FINGERPRINT_VARIABLE, KEY_VARIABLE
from tfdist.system.program import HOROVODS_NAMES
from tfdist.system.rank import job_place

_LAUNCHERS_OWN = (KEY_VARIABLE, FINGERPRINT_VARIABLE)


def of_rank(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of the rank's process: no key, a share of the cores, unbuffered output, Horovod's names."""
    child = {name: value for name, value in environment.items() if name not in _LAUNCHERS_OWN}
    child |= place.for_others(environment)
    _, ranks_here = job_place.of_host(environment) or (0, 1)
    if ranks_here > 1:
        cores = available().count
        # If mpirun has bound us to fewer cores than it has itself, those are our share already.
        bound = os.sched_getaffinity(0) != os.sched_getaffinity(os.getppid())
        child.update(thread_defaults(cores if bound else cores // ranks_here, environment))
    child.setdefault("PYTHONUNBUFFERED", "1")
    if child.get("TFDIST_AS_HOROVOD") == "1":
        others = [place for place in child.get("PYTHONPATH", "").split(os.pathsep) if place]
        child["PYTHONPATH"] = os.pathsep.join([HOROVODS_NAMES, *others])
    return child
