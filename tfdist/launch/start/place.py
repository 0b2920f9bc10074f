"""A rank's place in its job as mpirun writes it, whichever program started the rank. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from tfdist.launch.start.choice import KINDS
from tfdist.launch.start.mpirun import Mpirun
from tfdist.launch.start.starter import Starter


def starter(environment: Mapping[str, str]) -> type[Starter] | None:
    """Who has started this rank; None where nobody tells its place.

    Raises:
        ConfigError: If the variables of a starter cannot be read.
    """
    return next((kind for kind in KINDS.values() if kind.place(environment)), None)


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """What mpirun sets, of a rank that another program started too; nothing where nobody tells the place.

    Raises:
        ConfigError: If the variables of a starter cannot be read.
    """
    kind = starter(environment)
    return {} if kind is None else dict(zip(Mpirun.place_variables, kind.place(environment), strict=True))
