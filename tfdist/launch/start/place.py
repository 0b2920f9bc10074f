"""A rank's place in its job as mpirun writes it, where another program started the rank. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from tfdist.launch.start.mpirun import PLACE, Mpirun
from tfdist.launch.start.starter import KINDS


def started_by_mpirun(environment: Mapping[str, str]) -> bool:
    """Whether the variables of mpirun are there."""
    return bool(Mpirun.place(environment))


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """What mpirun would have set beside what is there: nothing where it has, or where nobody tells the place.

    Raises:
        ConfigError: If the variables of another starter cannot be read.
    """
    if started_by_mpirun(environment):
        return {}
    places = (kind.place(environment) for kind in KINDS.values())
    return dict(zip(PLACE, next(filter(None, places), ()), strict=False))
