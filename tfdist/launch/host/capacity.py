"""What this machine has for ranks: the GPUs, cores and memory that this process may use. TensorFlow is not imported."""

from __future__ import annotations

import contextlib
import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tfdist.launch.host import core

_ROOT = Path("/")
_GPU_FILE = re.compile(r"nvidia\d+")
_BUILD = "python/platform/build_info.py"
_WITHOUT_CUDA = re.compile(r"is_cuda_build\W+False")


@dataclass(frozen=True)
class Capacity:
    """GPUs that TensorFlow can use, physical cores, and bytes of memory that are free."""

    gpus: int
    cores: int
    free_bytes: int


def read(environment: Mapping[str, str], root: Path = _ROOT) -> Capacity:
    """The capacity of this machine; files are those below `root`."""
    return Capacity(_gpus(environment, root), core.available(root / "sys").count, _free_bytes(root))


def _gpus(environment: Mapping[str, str], root: Path) -> int:
    with contextlib.suppress(OSError):
        there = sum(_GPU_FILE.fullmatch(path.name) is not None for path in (root / "dev").iterdir())
        if there and _uses_cuda():
            return min(there, _shown(environment.get("CUDA_VISIBLE_DEVICES"), there))
    return 0


def _shown(text: str | None, there: int) -> int:
    """How many GPUs CUDA_VISIBLE_DEVICES leaves: CUDA ignores what comes after the first that is none."""
    if text is None:
        return there
    names = [name.strip() for name in text.split(",")]
    return next((place for place, name in enumerate(names) if name in ("", "-1")), len(names))


def _uses_cuda() -> bool:
    """Whether the TensorFlow of this Python is built with CUDA; assumed if that is unknown, as in another Python."""
    spec = importlib.util.find_spec("tensorflow")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        with contextlib.suppress(OSError):
            return _WITHOUT_CUDA.search((Path(folder) / _BUILD).read_text(encoding="utf-8")) is None
    return True


def _free_bytes(root: Path) -> int:
    lines = dict(line.split(":", 1) for line in (root / "proc/meminfo").read_text().splitlines())
    free = int(lines["MemAvailable"].split()[0]) << 10
    for limit, used, statistics, key in (
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
    ):
        groups = root / "sys/fs/cgroup"
        with contextlib.suppress(OSError, ValueError, KeyError):  # no such version of cgroups, or no limit ("max")
            cached = dict(line.split() for line in (groups / statistics).read_text().splitlines())[key]
            inside = int((groups / limit).read_text()) - int((groups / used).read_text()) + int(cached)
            free = min(free, max(0, inside))
    return free
