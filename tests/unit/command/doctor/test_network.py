"""What NCCL would use, and what stands in its way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tfdist.command.doctor import network
from tfdist.command.doctor.finding import BROKEN, NOTE, OK, Finding
from tfdist.command.doctor.host import Fabric, Host, Interface

NAMES = ("docker0", "ens1", "ens10", "ib0", "lo", "virbr0")


def interfaces(*names: str, down: tuple[str, ...] = ()) -> tuple[Interface, ...]:
    return tuple(Interface(name, name not in down, name == "lo") for name in names)


def found(host: Host, name: str, gpus: int = 2, **environment: str) -> Finding:
    return next(one for one in network.findings(host, gpus, environment) if one.name == name)


@pytest.mark.parametrize(
    ("names", "wish", "chosen"),
    [
        (NAMES, "", ["ib0"]),
        (("docker0", "ens1", "ens10", "lo"), "", ["ens1", "ens10"]),
        (("docker0", "lo"), "", ["docker0"]),
        (("lo",), "", ["lo"]),
        (NAMES, "ens1", ["ens1", "ens10"]),
        (NAMES, "=ens1", ["ens1"]),
        (NAMES, "ens,ib", ["ens1", "ens10", "ib0"]),
        (NAMES, "^docker,virbr,lo", ["ens1", "ens10", "ib0"]),
        (NAMES, "^=ens1", ["docker0", "ens10", "ib0", "lo", "virbr0"]),
        (NAMES, "eth", []),
    ],
)
def test_choice_by_nccls_rules(names: tuple[str, ...], wish: str, chosen: list[str]) -> None:
    assert network.chosen_interfaces(interfaces(*names), wish) == chosen


def test_interfaces_that_are_down_are_not_chosen() -> None:
    assert network.chosen_interfaces(interfaces("ens1", "ib0", "lo", down=("ib0",)), "") == ["ens1"]


def test_all_is_well(server: Host) -> None:
    findings = network.findings(server, 2, {})
    assert {one.state for one in findings} == {OK}
    assert "NCCL would use eth0" in found(server, "interfaces").text
    assert "mlx5_0 port 1: InfiniBand, 400 Gb/sec" in found(server, "InfiniBand, RoCE").text
    assert found(server, "GPUDirect RDMA").text == "through nvidia_peermem"
    assert found(server, "locked memory").text == "unlimited"


def test_an_interface_that_is_not_there(server: Host) -> None:
    one = found(server, "interfaces", NCCL_SOCKET_IFNAME="ens9")
    assert one.state == BROKEN
    assert "available: eth0, lo" in one.text and "'ens9'" in one.remedy


def test_variables_in_force_are_shown(server: Host) -> None:
    shown = network.findings(server, 2, {"NCCL_IB_HCA": "mlx5_0", "NCCL_NET": "", "NCCL_DEBUG": "INFO"})
    assert [(one.name, one.text) for one in shown if one.name.startswith("NCCL")] == [("NCCL_IB_HCA", "mlx5_0")]


def test_fabric_that_cannot_be_used(server: Host) -> None:
    name = "InfiniBand, RoCE"
    one = found(replace(server, verbs_files=()), name)
    assert one.state == NOTE and "--device=/dev/infiniband" in one.remedy
    down = replace(server, fabrics=(Fabric("mlx5_0", "1", "Ethernet", False, "40 Gb/sec"),))
    one = found(down, name)
    assert one.state == NOTE and "RoCE, not active" in one.text
    one = found(server, name, NCCL_IB_DISABLE="1")
    assert one.state == NOTE and "disabled by NCCL_IB_DISABLE" in one.text
    assert found(server, name, NCCL_IB_DISABLE="0").state == OK


@pytest.mark.parametrize(
    ("is_open", "kernel", "state"),
    [(True, "6.8.0-45-generic", OK), (True, "5.12.1", OK), (True, "5.4.0-150", NOTE), (False, "6.8.0", NOTE)],
)
def test_direct_memory_without_the_module(server: Host, is_open: bool, kernel: str, state: str) -> None:
    one = found(replace(server, peer_module="", open_driver=is_open, kernel=kernel), "GPUDirect RDMA")
    assert one.state == state
    assert ("modprobe nvidia_peermem" in one.remedy) == (state == NOTE)


def test_limits(server: Host) -> None:
    small = replace(server, memlock_bytes=8 << 20, shm_bytes=64 << 20)
    one = found(small, "locked memory")
    assert one.state == NOTE and one.text == "at most 8 MiB" and "--ulimit memlock=-1" in one.remedy
    assert found(replace(small, fabrics=()), "locked memory").state == OK
    one = found(small, "/dev/shm")
    assert one.state == NOTE and one.text == "64 MiB" and "--shm-size=8g" in one.remedy
    assert found(small, "/dev/shm", gpus=1).state == OK
    assert found(replace(small, shm_bytes=None), "/dev/shm").state == NOTE


def test_without_a_gpu_nothing_is_wrong(server: Host) -> None:
    poor = replace(server, memlock_bytes=1, shm_bytes=1, verbs_files=(), interfaces=())
    findings = network.findings(poor, 0, {"NCCL_SOCKET_IFNAME": "none"})
    assert {(one.state, one.remedy) for one in findings} == {(OK, "")}
    assert "GPUDirect RDMA" not in {one.name for one in findings}
