"""The rows of `tfdist env`. Packages are not imported: their versions come from their metadata."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Mapping

from tfdist import __version__, config
from tfdist.command.doctor import host
from tfdist.errors import ConfigError
from tfdist.launch.host import capacity
from tfdist.launch.start import mpirun
from tfdist.native import requirement

NONE = "not installed"
_PACKAGES = {
    "TensorFlow": (*requirement.TENSORFLOWS, "tf-nightly", "tf-nightly-cpu"),
    "Keras": requirement.KERAS,
    "NumPy": ("numpy",),
    "mpi4py": ("mpi4py",),
    "CUDA": ("nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime-cu13", "nvidia-cuda-runtime"),
    "NCCL": ("nvidia-nccl-cu12", "nvidia-nccl-cu13"),
}
_MPIRUN_S = 10.0
_USER = re.compile(r"(?<=://)[^/@\s]+@|(?<=\?).+$")

Row = tuple[str, str]


def rows(environment: Mapping[str, str]) -> list[Row]:
    """Names and values; one that cannot be found says so."""
    machine = capacity.read(environment)
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    driver = host.read().driver
    return [
        ("tfdist", __version__),
        ("Python", f"{platform.python_version()}, {sys.executable}"),
        *((name, _installed(packages)) for name, packages in _PACKAGES.items()),
        ("MPI", _mpi(environment)),
        ("NVIDIA driver", driver or "none"),
        ("GPUs", f"{machine.gpus} that TensorFlow can use"),
        ("OS", f"{_system()}, Linux {platform.release()}, {platform.machine()}"),
        ("CPU cores", f"{machine.cores} physical of {os.cpu_count()} logical"),
        ("memory", f"{total / 1e9:.1f} GB, {machine.free_bytes / 1e9:.1f} GB free"),
        *_settings(environment),
    ]


def _installed(packages: tuple[str, ...]) -> str:
    found = [f"{version} ({package})" for package, version in requirement.installed(packages).items()]
    return ", ".join(found) or NONE


def _mpi(environment: Mapping[str, str]) -> str:
    """The first line of mpirun's version, and where it is."""
    try:
        path = mpirun.find(environment.get(config.variable("mpi_home")), environment)
    except ConfigError:
        return NONE
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, errors="replace", timeout=_MPIRUN_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{path} does not run: {error}"
    return f"{next(iter(done.stdout.splitlines()), f'exit status {done.returncode}')}, {path}"


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def _settings(environment: Mapping[str, str]) -> list[Row]:
    """The settings that a variable gives, as they are in effect, under the name of that variable."""
    found = []
    for setting in config.SETTINGS:
        for name in filter(None, (setting.variable, setting.horovod_variable)):
            if environment.get(name):
                found.append((name, _USER.sub("***", _effective(setting.parse, environment[name]))))
                break
    return found


def _effective(parse: Callable[[str], object], text: str) -> str:
    try:
        return str(parse(text))
    except ValueError as error:
        return f"{text} (cannot be used: {error})"
