"""Describes the machine a measurement ran on: processor, cores, memory, versions."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

from tfdist.native import hardware

PACKAGES = ("tfdist", "tensorflow", "tensorflow-cpu", "keras")


def describe(processor: Path = Path("/proc/cpuinfo")) -> dict[str, str | int]:
    """Facts by name, none of them private."""
    facts: dict[str, str | int] = {
        "processor": hardware.processor(processor),
        "cores": os.cpu_count() or 1,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }
    for name in PACKAGES:
        try:
            facts[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return facts
