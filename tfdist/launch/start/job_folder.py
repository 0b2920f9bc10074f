"""The folders of a job on a host, so that whoever is left can remove what a killed mpirun leaves.

Open MPI puts what ranks share into /dev/shm, under names that nobody knows when it is gone, and its own files into a
folder of /tmp. Here each rank, and mpirun, gets a folder named after the job.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from tfdist import config

# Files here are memory; they outlive the processes.
MEMORY = Path("/dev/shm")
_SEGMENTS = ("OMPI_MCA_btl_sm_backing_directory", "OMPI_MCA_osc_sm_backing_directory")
_SESSION = "PRTE_MCA_prte_local_tmpdir_base"


def segments(job: str, rank: int) -> Path:
    """Where a rank puts the memory that it shares."""
    return MEMORY / f"tfdistrun-{job}-{rank}"


def segment_variables(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Makes that folder, and has MPI use it unless the user has named another place or there is no such memory.

    A rank that is alone on its host shares nothing, so that nothing is left where all of a host's processes are killed.
    """
    local = config.launcher_local_place(environment)
    is_alone = local is not None and local[1] == 1
    if is_alone or any("_backing_directory" in name for name in environment):
        return {}
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return {}
    return dict.fromkeys(_SEGMENTS, str(folder))


def session(job: str) -> Path:
    """Where mpirun puts its own files on the launcher's host."""
    return Path(tempfile.gettempdir()) / f"tfdistrun.{job}"


def session_variables(folder: Path, words: Iterable[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Has mpirun use that folder, unless the user has named a place: with two such settings it would not start."""
    own = any("tmpdir_base" in text for text in (*words, *environment))
    return {} if own else {_SESSION: str(folder)}


def remove(job: str) -> None:
    """Removes all of them on this host; for the end of the job, when none of its processes is left."""
    for folder in (session(job), *MEMORY.glob(f"tfdistrun-{job}-*")):
        shutil.rmtree(folder, ignore_errors=True)
