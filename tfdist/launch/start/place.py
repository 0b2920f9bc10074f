"""A rank's place in its job, in the variables of mpirun, whichever program started the rank."""

from __future__ import annotations

from collections.abc import Mapping

from tfdist.launch.start.choice import KINDS
from tfdist.launch.start.hydra import Hydra
from tfdist.launch.start.mpirun import Mpirun
from tfdist.launch.start.starter import Starter

_KINDS: tuple[type[Starter], ...] = (*KINDS.values(), Hydra)


def starter(environment: Mapping[str, str]) -> type[Starter] | None:
    """The program that started this rank; None if no variables describe its place.

    Raises:
        ConfigError: If the variables of a starter cannot be parsed.
    """
    return next((kind for kind in _KINDS if kind.place(environment)), None)


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables mpirun would set, even if another program started the rank; empty if its place is unknown.

    Raises:
        ConfigError: If the variables of a starter cannot be parsed.
    """
    kind = starter(environment)
    return {} if kind is None else dict(zip(Mpirun.place_variables, kind.place(environment), strict=True))


def descriptors(environment: Mapping[str, str]) -> tuple[int, ...]:
    """The descriptors that a rank's process must inherit, because the starter serves its MPI by them.

    A variable of another starter is left from around the job, and its descriptor is not of this process.

    Raises:
        ConfigError: If the variables of a starter cannot be parsed.
    """
    kind = starter(environment)
    names = () if kind is None else kind.descriptor_variables
    return tuple(int(environment[name]) for name in names if environment.get(name, "").isdigit())
