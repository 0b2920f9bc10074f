"""The folders of a job on a host, so that surviving processes can remove what a killed mpirun leaves behind.

Open MPI puts shared memory into /dev/shm, under names that are unknown once it is gone, and its own files into a folder
in /tmp. Instead, each rank, and mpirun, gets a folder named after the job.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from tfdist.system.rank import job_place

# Files here use memory, and outlive their processes.
MEMORY = Path("/dev/shm")
_SEGMENTS = ("OMPI_MCA_btl_sm_backing_directory", "OMPI_MCA_osc_sm_backing_directory")
_SESSION = "PRTE_MCA_prte_local_tmpdir_base"


def segments(job: str, rank: int) -> Path:
    """The folder for a rank's shared memory."""
    return MEMORY / f"tfdistrun-{job}-{rank}"


def segment_variables(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Creates that folder, and makes MPI use it unless the user has chosen another or there is no such memory.

    A rank that is alone on its host shares nothing, so nothing is left if all processes of a host are killed. A folder
    that is there already is somebody else's, who could read and replace what is in it.
    """
    local = job_place.of_host(environment)
    is_alone = local is not None and local[1] == 1
    if is_alone or any("_backing_directory" in name for name in environment):
        return {}
    try:
        folder.mkdir(mode=0o700)
    except OSError:
        return {}
    return dict.fromkeys(_SEGMENTS, str(folder))


def session(job: str) -> Path:
    """The folder for mpirun's own files on the launcher's host."""
    return Path(tempfile.gettempdir()) / f"tfdistrun.{job}"


def session_variables(folder: Path, words: Iterable[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Makes mpirun use that folder, unless the user has chosen one: with two such settings it would not start."""
    own = any("tmpdir_base" in text for text in (*words, *environment))
    return {} if own else {_SESSION: str(folder)}


def remove(job: str) -> None:
    """Removes all of the job's folders on this host, when none of its processes is left."""
    for folder in (session(job), *MEMORY.glob(f"tfdistrun-{job}-*")):
        shutil.rmtree(folder, ignore_errors=True)
