"""The network that MPI uses between hosts that have more interfaces than one. They are played by `machine`."""

from __future__ import annotations

from typing import Any

import pytest
from machine import LINK, Machines

pytestmark = pytest.mark.starter("mpi")

MEET = """\
from mpi4py import MPI
print('sum', MPI.COMM_WORLD.allreduce(3 ** rank), os.environ['OMPI_MCA_btl_tcp_if_include'])
"""


def test_network_that_all_hosts_share(machines: Machines, launch: Any) -> None:
    machines.add_bridge("docker0", "172.17.0.1/16")
    machines.add_bridge("tun0", "10.8.0.1/24")
    launch.script(MEET)
    done = launch.end(machines.start(launch, "--verbose", network=()))
    assert done.code == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] sum 4 10.77.0.0/24" for rank in range(2)]
    assert (
        "tfdistrun: network between the hosts: 10.77.0.0/24; choose another with --network-interfaces\n" in done.stderr
    )


def test_interface_that_is_named(machines: Machines, launch: Any) -> None:
    machines.add_bridge("docker0", "172.17.0.1/16")
    launch.script(MEET)
    done = launch.end(machines.start(launch, "--verbose"))
    assert done.code == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] sum 4 {LINK}" for rank in range(2)]
    assert "network between the hosts" not in done.stderr


def test_tcp_alone(machines: Machines, launch: Any) -> None:
    launch.script(MEET.replace("btl_tcp_if_include", "btl"))
    done = launch.end(machines.start(launch, "--tcp"))
    assert done.code == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] sum 4 self,sm,tcp" for rank in range(2)]
