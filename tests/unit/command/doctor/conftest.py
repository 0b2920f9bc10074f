"""What tests of the doctor share: a machine as files, and hosts as facts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tfdist.command.doctor.host import Fabric, Host, Interface

BARE = Host(
    driver="",
    open_driver=False,
    kernel="5.4.0-150-generic",
    gpu_files=(),
    pci_gpus=0,
    fabrics=(),
    verbs_files=(),
    peer_module="",
    interfaces=(Interface("eth0", True, False), Interface("lo", True, True)),
    memlock_bytes=None,
    shm_bytes=8 << 30,
)
SERVER = replace(
    BARE,
    driver="570.86.15",
    gpu_files=("nvidia0", "nvidia1"),
    pci_gpus=2,
    fabrics=(Fabric("mlx5_0", "1", "InfiniBand", True, "400 Gb/sec (4X NDR)"),),
    verbs_files=("uverbs0",),
    peer_module="nvidia_peermem",
)


@pytest.fixture
def bare() -> Host:
    """A machine without a GPU."""
    return BARE


@pytest.fixture
def server() -> Host:
    """One with two GPUs and InfiniBand, on which all is well."""
    return SERVER


@pytest.fixture
def tree(tmp_path: Path) -> Callable[[dict[str, str]], Path]:
    """Makes files below a root: `tree({"proc/modules": "..."})`."""

    def make(files: dict[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return make


@pytest.fixture
def report() -> dict[str, Any]:
    """What the engine says where two GPUs can be used."""
    gpu = {"name": "NVIDIA H200", "architecture": "sm_90", "memory_bytes": 141 << 30, "multiprocessors": 132}
    return {
        "driver": {"version": 12080},
        "gpus": [gpu, dict(gpu)],
        "nccl": {"version": 22800, "text": "NCCL 2.28.0 (/site/libnccl.so.2)"},
        "compiler": {"version": 12009, "text": "NVRTC 12.9 (/site/libnvrtc.so.12)"},
        "kernels": [{"architecture": "sm_90"}],
    }


@pytest.fixture
def probe(report: dict[str, Any]) -> dict[str, Any]:
    """What the probe says there."""
    return {
        "tfdist": "0.1.0",
        "python": "3.11.7",
        "tensorflow": {"version": "2.21.0", "cuda": True, "gpus": 2},
        "keras": {"version": "3.15.1"},
        "mpi": {"version": "Open MPI v5.0.11"},
        "library": {"built": {"for": "TensorFlow 2.21, Open MPI 5.0.11"}},
        "gpus": report,
        "twins": {},
    }
