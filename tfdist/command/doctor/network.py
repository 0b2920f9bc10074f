"""Findings about the network that NCCL would use, and about resource limits, from facts about the host."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tfdist.command.doctor.finding import BROKEN, NOTE, OK, Finding
from tfdist.command.doctor.host import Host, Interface

GROUP = "network and limits"
# Variables that change NCCL's choice of a network.
VARIABLES = ("NCCL_SOCKET_IFNAME", "NCCL_IB_DISABLE", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_NET", "NCCL_NET_PLUGIN")
_MIB = 1 << 20
_LEAST_SHM_BYTES = 1 << 30
_FIRST_KERNEL_WITH_DMA_BUF = (5, 12)


def findings(host: Host, gpus: int, environment: Mapping[str, str]) -> list[Finding]:
    """Problems count only if TensorFlow uses GPUs, because only they use NCCL."""
    found = [_interfaces(host, environment)]
    found += [Finding(GROUP, name, environment[name]) for name in VARIABLES if environment.get(name)]
    found.append(_fabric(host, environment))
    if host.fabrics and gpus:
        found.append(_direct_memory(host))
    found.append(_locked_memory(host))
    found.append(_shared_memory(host, gpus))
    if gpus:
        return found
    return [Finding(one.group, one.name, one.text, OK) for one in found]


def chosen_interfaces(interfaces: tuple[Interface, ...], wish: str) -> list[str]:
    """The names of the interfaces that NCCL would use.

    Args:
        interfaces: The interfaces of the host.
        wish: NCCL_SOCKET_IFNAME: comma-separated prefixes, or whole names after "="; a leading "^" excludes them.
    """
    up = [interface for interface in interfaces if interface.up]
    if wish:
        return [interface.name for interface in up if _is_wished(interface.name, wish)]
    kinds: dict[str, list[str]] = {"fast": [], "other": [], "bridge": [], "loopback": []}
    for interface in up:
        kinds[_kind(interface)].append(interface.name)
    return next(filter(None, kinds.values()), [])


def _is_wished(name: str, wish: str) -> bool:
    rest = wish.removeprefix("^")
    parts = [part for part in rest.removeprefix("=").split(",") if part]
    named = name in parts if rest.startswith("=") else name.startswith(tuple(parts))
    return named != wish.startswith("^")


def _kind(interface: Interface) -> str:
    if interface.loopback:
        return "loopback"
    if interface.name.startswith(("docker", "virbr")):
        return "bridge"
    return "fast" if interface.name.startswith("ib") else "other"


def _interfaces(host: Host, environment: Mapping[str, str]) -> Finding:
    wish = environment.get("NCCL_SOCKET_IFNAME", "")
    chosen = chosen_interfaces(host.interfaces, wish)
    if chosen:
        return Finding(GROUP, "interfaces", f"NCCL would use {', '.join(chosen)}")
    there = ", ".join(interface.name for interface in host.interfaces) or "none"
    remedy = (
        f"set NCCL_SOCKET_IFNAME to one of them, or unset it; it is {wish!r}"
        if wish
        else "connect the host to a network"
    )
    return Finding(GROUP, "interfaces", f"no interface that NCCL may use is up; available: {there}", BROKEN, remedy)


def _fabric(host: Host, environment: Mapping[str, str]) -> Finding:
    name = "InfiniBand, RoCE"
    if not host.fabrics:
        return Finding(GROUP, name, "none: hosts communicate over TCP")
    active = [port for port in host.fabrics if port.active]
    text = "; ".join(
        f"{port.device} port {port.port}: {'RoCE' if port.layer == 'Ethernet' else port.layer}, "
        f"{port.rate if port.active else 'not active'}"
        for port in host.fabrics
    )
    if environment.get("NCCL_IB_DISABLE", "0") not in ("", "0"):
        return Finding(GROUP, name, f"{text}; disabled by NCCL_IB_DISABLE", NOTE, "unset NCCL_IB_DISABLE to use it")
    if not host.verbs_files:
        return Finding(
            GROUP,
            name,
            f"{text}; but /dev/infiniband has no device",
            NOTE,
            "NCCL uses TCP instead. On a host: load ib_uverbs; in a container: docker run --device=/dev/infiniband",
        )
    if not active:
        return Finding(
            GROUP, name, text, NOTE, "no port is active, so NCCL uses TCP: check the cables and the subnet manager"
        )
    return Finding(GROUP, name, text)


def _direct_memory(host: Host) -> Finding:
    name = "GPUDirect RDMA"
    if host.peer_module:
        return Finding(GROUP, name, f"through {host.peer_module}")
    numbers = tuple(int(number) for number in re.findall(r"\d+", host.kernel)[:2])
    if host.open_driver and numbers >= _FIRST_KERNEL_WITH_DMA_BUF:
        return Finding(GROUP, name, f"probably through DMA-BUF (open driver, Linux {host.kernel})")
    remedy = "load the module on the host: modprobe nvidia_peermem (part of the NVIDIA driver)"
    return Finding(GROUP, name, "not found: GPUs send data through host memory", NOTE, remedy)


def _locked_memory(host: Host) -> Finding:
    name = "locked memory"
    if host.memlock_bytes is None:
        return Finding(GROUP, name, "unlimited")
    text = f"at most {host.memlock_bytes / _MIB:.3g} MiB"
    if not host.fabrics:
        return Finding(GROUP, name, text)
    remedy = "InfiniBand needs more: ulimit -l unlimited, in limits.conf for ssh; docker run --ulimit memlock=-1"
    return Finding(GROUP, name, text, NOTE, remedy)


def _shared_memory(host: Host, gpus: int) -> Finding:
    if host.shm_bytes is None:
        remedy = "mount a tmpfs there: NCCL uses it for buffers between the GPUs of a host"
        return Finding(GROUP, "/dev/shm", "missing", NOTE if gpus > 1 else OK, remedy if gpus > 1 else "")
    text = f"{host.shm_bytes / _MIB:.0f} MiB"
    if gpus > 1 and host.shm_bytes < _LEAST_SHM_BYTES:
        return Finding(GROUP, "/dev/shm", text, NOTE, "NCCL may need more: docker run --shm-size=8g, or --ipc=host")
    return Finding(GROUP, "/dev/shm", text)
