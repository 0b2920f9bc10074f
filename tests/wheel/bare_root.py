"""A root with Python and nothing to compile with, in which the wheel of dist/ is installed and used.

The root is a Debian of `debootstrap --variant=minbase`, kept in build/wheels. An interpreter of this machine is mounted
in it, read-only, at its own path. What pip needs was downloaded before, so the time of an installation is pip's own.
Needs root rights and debootstrap, and `make wheels` before: `make test-wheel` does both.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / "build" / "wheels"
# What the interpreters of a distribution or of pyenv link with. No Python, no compiler, no make, no git, no ssh.
SHARED_LIBRARIES = (
    *("ca-certificates", "libssl3", "libffi8", "libsqlite3-0", "libbz2-1.0", "liblzma5", "libreadline8", "zlib1g"),
    *("libncursesw6", "libuuid1", "libexpat1"),
)
COMPILERS = ("gcc", "g++", "cc", "c++", "make", "cmake", "git", "ssh", "python3")
SECONDS = 600
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


@dataclass
class Bare:
    """A root, and an interpreter that is mounted in it."""

    root: Path
    prefix: Path
    program: str

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs a command in the root, in a mount namespace of its own, so that nothing stays mounted."""
        script = (
            'mkdir -p "$1$2"; mount --bind -o ro "$2" "$1$2"; mount -t proc proc "$1/proc"; '
            'mount --rbind /dev "$1/dev"; root=$1; shift 2; exec chroot "$root" "$@"'
        )
        outer = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script, "sh"]
        return subprocess.run(
            [*outer, str(self.root), str(self.prefix), *words],
            env={"PATH": PATH, "HOME": "/root", "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
        )


def find_interpreter(version: str) -> Path | None:
    """A program of this version that has ensurepip: on PATH, or beside this one where several versions are kept."""
    found = shutil.which(f"python{version}")
    kept = sorted(Path(sys.base_prefix).parent.glob(f"{version}.*/bin/python{version}"))
    for program in [*kept, *([Path(found)] if found else [])]:
        done = subprocess.run([str(program), "-c", "import ensurepip"], capture_output=True, timeout=60, check=False)
        if done.returncode == 0:
            return program.resolve()
    return None


def make_root(folder: Path, debian: str) -> Path:
    if not (folder / "made").is_file():
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        command = ["debootstrap", "--variant=minbase", f"--include={','.join(SHARED_LIBRARIES)}", debian, str(folder)]
        subprocess.run(command, capture_output=True, timeout=SECONDS, check=True)
        (folder / "made").touch()
    there = [name for name in COMPILERS for place in PATH.split(":") if (folder / place[1:] / name).exists()]
    assert there == []
    return folder


def install(bare: Bare, wheel: Path, *requirements: str, extra: str = "[cpu]") -> float:
    """Makes /venv with the wheel and more, and returns the seconds that pip took."""
    done = bare.run(bare.program, "-m", "venv", "/venv")
    assert done.returncode == 0, done.stdout + done.stderr
    _download(bare, f"{wheel}{extra}", *requirements)
    return add(bare, f"/wheels/{wheel.name}{extra}", *requirements)


def add(bare: Bare, *requirements: str) -> float:
    """Installs what has been downloaded in /venv, and returns the seconds that pip took."""
    begin = time.monotonic()
    pip = ("/venv/bin/pip", "install", "--quiet", "--no-index", "--find-links", "/wheels")
    done = bare.run(*pip, *requirements)
    assert done.returncode == 0, done.stdout + done.stderr
    return time.monotonic() - begin


def replace(bare: Bare, *requirements: str) -> None:
    """Downloads and installs in /venv, as a user's `pip install` would."""
    _download(bare, *requirements)
    add(bare, *requirements)


def follow(bare: Bare, message: str) -> None:
    """Does what a message tells: its first command `pip install REQUIREMENT`."""
    requirement = re.search(r"pip install ([^`),;]+)", message)
    assert requirement is not None, message
    replace(bare, *shlex.split(requirement.group(1)))


def _download(bare: Bare, *requirements: str) -> None:
    """With the interpreter of the root but outside, where there is a network."""
    pip = [bare.program, "-m", "pip", "download", "--quiet", "--only-binary", ":all:", "--dest", f"{bare.root}/wheels"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    subprocess.run([*pip, *requirements], env=environment, timeout=SECONDS, check=True)


def accuracy(output: str) -> float:
    """What examples/digits.py says that it has reached."""
    return float(re.findall(r"validation accuracy: ([\d.]+)", output)[-1])
