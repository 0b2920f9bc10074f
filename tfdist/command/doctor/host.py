"""Facts about this machine that matter for GPUs and their network, read from /proc, /sys and /dev."""

from __future__ import annotations

import os
import re
import resource
from dataclasses import dataclass
from pathlib import Path

_NVIDIA_VENDOR = "0x10de"
_DISPLAY_CLASSES = ("0x0300", "0x0302")
_LOOPBACK_TYPE = "772"


@dataclass(frozen=True)
class Fabric:
    """A port of an InfiniBand or RoCE device; `layer` is "InfiniBand" or "Ethernet"."""

    device: str
    port: str
    layer: str
    active: bool
    rate: str


@dataclass(frozen=True)
class Interface:
    """A network interface."""

    name: str
    up: bool
    loopback: bool


@dataclass(frozen=True)
class Host:
    """The facts.

    Attributes:
        driver: Version of the NVIDIA driver, such as "570.86.15"; empty if it is not loaded.
        open_driver: Whether it is the open-source driver, which can share GPU memory through DMA-BUF.
        kernel: Linux release.
        gpu_files: Device files of GPUs, such as "nvidia0".
        pci_gpus: Number of NVIDIA GPUs on the PCI bus, with or without a driver.
        fabrics: InfiniBand or RoCE ports.
        verbs_files: Their device files, such as "uverbs0".
        peer_module: The kernel module that gives them access to GPU memory; empty if there is none.
        interfaces: Network interfaces.
        memlock_bytes: Memory that this process may lock; None: unlimited.
        shm_bytes: Size of /dev/shm; None if it does not exist.
    """

    driver: str
    open_driver: bool
    kernel: str
    gpu_files: tuple[str, ...]
    pci_gpus: int
    fabrics: tuple[Fabric, ...]
    verbs_files: tuple[str, ...]
    peer_module: str
    interfaces: tuple[Interface, ...]
    memlock_bytes: int | None
    shm_bytes: int | None


def read(root: Path = Path("/")) -> Host:
    """Reads the facts from files below `root`; the limit on locked memory is that of this process."""
    driver = _text(root / "proc/driver/nvidia/version")
    version = re.search(r"Module.*?\s(\d+(?:\.\d+)+)\s", f"{driver} ")
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return Host(
        driver=version.group(1) if version else "",
        open_driver="Open Kernel Module" in driver,
        kernel=_text(root / "proc/sys/kernel/osrelease"),
        gpu_files=tuple(name for name in _names(root / "dev") if re.fullmatch(r"nvidia\d+|dxg", name)),
        pci_gpus=sum(map(_is_gpu, _paths(root / "sys/bus/pci/devices"))),
        fabrics=tuple(_fabrics(root / "sys/class/infiniband")),
        verbs_files=tuple(name for name in _names(root / "dev/infiniband") if name.startswith("uverbs")),
        peer_module=_peer_module(root / "proc/modules"),
        interfaces=tuple(_interface(path) for path in _paths(root / "sys/class/net")),
        memlock_bytes=None if locked == resource.RLIM_INFINITY else locked,
        shm_bytes=_size(root / "dev/shm"),
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _paths(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _names(folder: Path) -> list[str]:
    return [path.name for path in _paths(folder)]


def _is_gpu(device: Path) -> bool:
    return _text(device / "vendor") == _NVIDIA_VENDOR and _text(device / "class").startswith(_DISPLAY_CLASSES)


def _fabrics(folder: Path) -> list[Fabric]:
    return [
        Fabric(
            device.name,
            port.name,
            _text(port / "link_layer") or "InfiniBand",
            "ACTIVE" in _text(port / "state"),
            _text(port / "rate"),
        )
        for device in _paths(folder)
        for port in _paths(device / "ports")
    ]


def _peer_module(modules: Path) -> str:
    loaded = {line.split()[0] for line in _text(modules).splitlines() if line.strip()}
    return next((name for name in ("nvidia_peermem", "nv_peer_mem") if name in loaded), "")


def _interface(path: Path) -> Interface:
    loopback = _text(path / "type") == _LOOPBACK_TYPE
    # "unknown": a driver that does not say, such as that of the loopback or of a tunnel.
    return Interface(path.name, _text(path / "operstate") in ("up", "unknown"), loopback)


def _size(folder: Path) -> int | None:
    try:
        facts = os.statvfs(folder)
    except OSError:
        return None
    return facts.f_blocks * facts.f_frsize
