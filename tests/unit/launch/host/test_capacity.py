"""Tests of tfdist.launch.host.capacity."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from tfdist.launch.host import capacity


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One with three GPUs, 8 GiB of free memory, and a TensorFlow with CUDA."""
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / "dev" / name).touch()
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:  16777216 kB\nMemAvailable:  8388608 kB\nHugePages_Total: 0\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    _tensorflow(tmp_path, monkeypatch, cuda=True)
    return tmp_path


def _tensorflow(folder: Path, monkeypatch: pytest.MonkeyPatch, cuda: bool) -> None:
    place = folder / "tensorflow"
    (place / "python/platform").mkdir(parents=True, exist_ok=True)
    (place / "python/platform/build_info.py").write_text(
        f"OrderedDict([('is_cuda_build', {cuda}), ('is_rocm', False)])"
    )
    spec = ModuleSpec("tensorflow", None, is_package=True)
    spec.submodule_search_locations = [str(place)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)


@pytest.mark.parametrize(
    ("shown", "gpus"),
    [(None, 3), ("0,2", 2), ("GPU-a", 1), ("", 0), ("-1", 0), ("1,-1,2", 1), ("0,1,2,3", 3)],
)
def test_gpus_that_are_visible(machine: Path, shown: str | None, gpus: int) -> None:
    environment = {} if shown is None else {"CUDA_VISIBLE_DEVICES": shown}
    assert capacity.read(environment, machine).gpus == gpus


def test_tensorflow_without_cuda_has_no_gpu(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _tensorflow(machine, monkeypatch, cuda=False)
    assert capacity.read({}, machine).gpus == 0
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert capacity.read({}, machine).gpus == 3, "the script's Python may be another"


def test_memory_that_is_free(machine: Path) -> None:
    assert capacity.read({}, machine).free_bytes == 8 << 30
    groups = machine / "sys/fs/cgroup"
    (groups / "memory").mkdir()
    (groups / "memory/memory.limit_in_bytes").write_text(str(6 << 30))
    (groups / "memory/memory.usage_in_bytes").write_text(str(2 << 30))
    (groups / "memory/memory.stat").write_text(f"total_inactive_file {1 << 30}\n")
    assert capacity.read({}, machine).free_bytes == 5 << 30
    (groups / "memory.max").write_text(f"{4 << 30}\n")
    (groups / "memory.current").write_text(f"{3 << 30}\n")
    (groups / "memory.stat").write_text(f"anon 5\ninactive_file {1 << 30}\n")
    assert capacity.read({}, machine).free_bytes == 2 << 30
    (groups / "memory.max").write_text("max\n")
    assert capacity.read({}, machine).free_bytes == 5 << 30
