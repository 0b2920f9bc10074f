"""Facts of a machine, read from trees in the form of /proc, /sys and /dev."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from tfdist.command.doctor import host
from tfdist.command.doctor.host import Fabric, Interface

CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.06  Wed Jun 26 06:46:07 UTC 2024\nGCC version: 12\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs-builder@U22)  Thu\n"
SERVER = {
    "proc/driver/nvidia/version": OPEN,
    "proc/sys/kernel/osrelease": "6.8.0-45-generic\n",
    "proc/modules": "nvidia_peermem 16384 0 - Live 0x0\nnvidia 9740288 1 nvidia_peermem, Live 0x0\n",
    "dev/nvidia0": "",
    "dev/nvidia7": "",
    "dev/nvidiactl": "",
    "dev/nvidia-uvm": "",
    "dev/infiniband/uverbs0": "",
    "dev/infiniband/rdma_cm": "",
    "dev/shm/x": "",
    "sys/bus/pci/devices/0000:17:00.0/vendor": "0x10de\n",
    "sys/bus/pci/devices/0000:17:00.0/class": "0x030200\n",
    "sys/bus/pci/devices/0000:18:00.0/vendor": "0x10de\n",
    "sys/bus/pci/devices/0000:18:00.0/class": "0x030000\n",
    "sys/bus/pci/devices/0000:18:00.1/vendor": "0x10de\n",
    "sys/bus/pci/devices/0000:18:00.1/class": "0x040300\n",  # its sound
    "sys/bus/pci/devices/0000:00:02.0/vendor": "0x8086\n",
    "sys/bus/pci/devices/0000:00:02.0/class": "0x030000\n",
    "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
    "sys/class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)\n",
    "sys/class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand\n",
    "sys/class/infiniband/mlx5_1/ports/1/state": "1: DOWN\n",
    "sys/class/infiniband/mlx5_1/ports/1/rate": "40 Gb/sec (4X QDR)\n",
    "sys/class/infiniband/mlx5_1/ports/1/link_layer": "Ethernet\n",
    "sys/class/net/lo/operstate": "unknown\n",
    "sys/class/net/lo/type": "772\n",
    "sys/class/net/ens1/operstate": "up\n",
    "sys/class/net/ens1/type": "1\n",
    "sys/class/net/ens2/operstate": "down\n",
    "sys/class/net/ens2/type": "1\n",
}


def test_a_server(tree: Callable[[dict[str, str]], Path]) -> None:
    facts = host.read(tree(SERVER))
    assert (facts.driver, facts.open_driver, facts.kernel) == ("570.86.15", True, "6.8.0-45-generic")
    assert facts.gpu_files == ("nvidia0", "nvidia7")
    assert facts.pci_gpus == 2
    assert facts.fabrics == (
        Fabric("mlx5_0", "1", "InfiniBand", True, "400 Gb/sec (4X NDR)"),
        Fabric("mlx5_1", "1", "Ethernet", False, "40 Gb/sec (4X QDR)"),
    )
    assert facts.verbs_files == ("uverbs0",)
    assert facts.peer_module == "nvidia_peermem"
    assert facts.interfaces == (
        Interface("ens1", True, False),
        Interface("ens2", False, False),
        Interface("lo", True, True),
    )
    assert facts.shm_bytes is not None and facts.shm_bytes > 0


def test_nothing_is_there(tmp_path: Path) -> None:
    facts = host.read(tmp_path)
    assert (facts.driver, facts.open_driver, facts.kernel, facts.peer_module) == ("", False, "", "")
    assert (facts.gpu_files, facts.pci_gpus, facts.fabrics, facts.verbs_files, facts.interfaces) == ((), 0, (), (), ())
    assert facts.shm_bytes is None


@pytest.mark.parametrize(
    ("text", "version", "is_open"), [(CLOSED, "535.183.06", False), (OPEN, "570.86.15", True), ("?", "", False)]
)
def test_driver(tree: Callable[[dict[str, str]], Path], text: str, version: str, is_open: bool) -> None:
    facts = host.read(tree({"proc/driver/nvidia/version": text}))
    assert (facts.driver, facts.open_driver) == (version, is_open)


@pytest.mark.parametrize("modules", ["nv_peer_mem 16384 0 - Live 0x0\n", "ext4 1 0\nnv_peer_mem 1 0\n"])
def test_older_name_of_the_peer_module(tree: Callable[[dict[str, str]], Path], modules: str) -> None:
    assert host.read(tree({"proc/modules": modules})).peer_module == "nv_peer_mem"


@pytest.mark.parametrize(("limit", "expected"), [(8 << 20, 8 << 20), (resource.RLIM_INFINITY, None)])
def test_locked_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, expected: int | None) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit, limit))
    assert host.read(tmp_path).memlock_bytes == expected


def test_this_machine() -> None:
    facts = host.read()
    assert facts.kernel
    assert any(interface.loopback for interface in facts.interfaces)
