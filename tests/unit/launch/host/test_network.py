"""Tests of tfdist.launch.host.network."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tfdist.launch.host import network


def _hex(address: str) -> str:
    """As the kernel writes it, in the order of this machine."""
    value = int.from_bytes(bytes(int(part) for part in address.split(".")), "big")
    return value.to_bytes(4, sys.byteorder).hex().upper()


def _routes(*rows: tuple[str, str, str, int]) -> str:
    lines = ["Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT"]
    for name, destination, mask, flags in rows:
        lines.append(f"{name}\t{_hex(destination)}\t00000000\t{flags:04X}\t0\t0\t0\t{_hex(mask)}\t0\t0\t0")
    return "\n".join([*lines, ""])


# A host with a default route, its network, one behind a gateway, a bridge, a VPN's host route and one that is down.
ROUTES = _routes(
    ("eth0", "0.0.0.0", "0.0.0.0", 3),
    ("eth0", "10.1.0.0", "255.255.0.0", 1),
    ("eth1", "10.1.4.0", "255.255.255.0", 1),
    ("eth0", "10.9.0.0", "255.255.0.0", 3),
    ("docker0", "172.17.0.0", "255.255.0.0", 1),
    ("tun0", "10.8.0.1", "255.255.255.255", 5),
    ("eth2", "10.2.0.0", "255.255.0.0", 0),
)


@pytest.mark.parametrize(
    ("addresses", "found"),
    [
        (["10.1.7.2"], "10.1.0.0/16"),
        (["10.1.4.2", "10.1.4.3"], "10.1.4.0/24"),
        (["10.1.4.2", "10.1.5.3"], "10.1.0.0/16"),
        (["172.17.0.3"], "172.17.0.0/16"),
        (["10.1.4.2", "172.17.0.3"], ""),
        (["10.9.0.3"], ""),
        (["10.8.0.1"], ""),
        (["10.2.0.1"], ""),
        (["192.0.2.1"], ""),
        ([], ""),
    ],
)
def test_network_that_all_hosts_share(addresses: list[str], found: str) -> None:
    assert network.shared(addresses, ROUTES) == found


def test_no_routes() -> None:
    assert network.shared(["10.1.7.2"], "") == ""


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["--mca", "btl_tcp_if_exclude", "x"], True),
        (["OMPI_MCA_btl_tcp_if_include"], True),
        (["PRTE_MCA_prte_if_include"], True),
        (["btl = self,sm,tcp\n  btl_tcp_if_exclude = docker0\n"], True),
        (["# btl_tcp_if_include = eth0\nbtl = tcp # not btl_tcp_if_include\n"], False),
        (["--mca", "btl_tcp_links", "2"], False),
        ([], False),
    ],
)
def test_settings_of_mpi_itself(texts: list[str], said: bool) -> None:
    assert network.is_set(texts) is said


def test_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "routes").write_text(ROUTES)
    monkeypatch.setattr(network, "_ROUTES", tmp_path / "routes")
    mpirun, addresses = str(tmp_path / "mpi/bin/mpirun"), ["10.1.4.2"]
    home = {"HOME": str(tmp_path / "home")}
    assert network.choose(addresses, (), home, mpirun) == "10.1.4.0/24"
    assert network.choose(addresses, ("--mca", "btl_tcp_if_include", "ib0"), home, mpirun) is None
    assert network.choose(addresses, (), home | {"OMPI_MCA_btl_tcp_if_exclude": "lo"}, mpirun) is None
    for folder, name in (("mpi/etc", "openmpi-mca-params.conf"), ("home/.openmpi", "mca-params.conf")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / name).write_text("btl_tcp_if_exclude = docker0\n")
        assert network.choose(addresses, (), home, mpirun) is None
        (tmp_path / folder / name).unlink()
    monkeypatch.setattr(network, "_ROUTES", tmp_path / "none")
    assert network.choose(addresses, (), home, mpirun) == ""
