"""Tests of tfdist.launch.start.direct."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tfdist.errors import ConfigError
from tfdist.launch.host.core import Cores
from tfdist.launch.host.host import Host
from tfdist.launch.start import place
from tfdist.launch.start.direct import Direct
from tfdist.system.rank import job_place

A, B, HERE = Host("a", 2), Host("b", 1), Host("localhost", 3)
ALONE = Direct("python", (Host("localhost", 3),), True, Cores(2, bindable=True))
OWN = dict(zip(job_place.OWN, ("2", "3", "1", "2"), strict=True))


def _direct(*hosts: Host, served: tuple[str, ...] = ("a", "b")) -> Direct:
    return Direct("p", hosts, local=False, cores=Cores(2, bindable=True), served=frozenset(served))


@pytest.mark.parametrize(
    ("hosts", "here", "elsewhere"),
    [
        ((HERE,), (0, 3), {}),
        ((A, B), (0, 0), {"a": (0, 2), "b": (2, 1)}),
        ((A, HERE, B), (2, 3), {"a": (0, 2), "b": (5, 1)}),
        ((Host("x", 1), HERE, A), (0, 4), {"a": (4, 2)}),
    ],
)
def test_who_starts_which_ranks(
    hosts: tuple[Host, ...], here: tuple[int, int], elsewhere: dict[str, tuple[int, int]]
) -> None:
    made = _direct(*hosts)
    assert (made.here, made.elsewhere) == (here, elsewhere)
    assert made.command(["task"], {}) == ["task", *map(str, here), str(sum(host.slots for host in hosts))]


def test_ranks_here_that_do_not_follow_each_other() -> None:
    with pytest.raises(ConfigError, match=r"localhost:3, a:2, x:1: without MPI, .* list it once with all its slots"):
        _direct(HERE, A, Host("x", 1))


def test_ranks_of_this_machine() -> None:
    assert ALONE.command(["python", "task.py"], {}) == ["python", "task.py", "0", "3", "3"]


def test_variables_for_nccl() -> None:
    assert ALONE.settings({}, root=True) == {}
    assert replace(ALONE, tcp=True).settings({}, root=True) == {"NCCL_NET": "Socket"}
    assert replace(ALONE, tcp=True).settings({"NCCL_NET": "IB"}, root=True) == {}
    assert replace(ALONE, interfaces=("a", "b")).settings({}, root=False) == {"NCCL_SOCKET_IFNAME": "a,b"}


def test_place_of_a_rank() -> None:
    assert place.starter(OWN) is Direct
    assert place.starter(OWN | {"OMPI_COMM_WORLD_RANK": "0", "PMIX_RANK": "0"}) is Direct, "it runs within another job"
    assert place.variables(OWN) == {}, "nothing may take the rank for one of MPI"


def test_place_for_other_frameworks() -> None:
    meeting = {place.ADDRESS_VARIABLE: "10.0.0.1", place.PORT_VARIABLE: "77"}
    assert place.for_others(OWN | meeting) == {
        "RANK": "2",
        "WORLD_SIZE": "3",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "KERAS_DISTRIBUTION_JOB_ADDRESSES": "10.0.0.1:77",
        "KERAS_DISTRIBUTION_NUM_PROCESSES": "3",
        "KERAS_DISTRIBUTION_PROCESS_ID": "2",
    }
    assert place.for_others(OWN) == {}
    assert place.for_others(meeting) == {}
    six = place.for_others(OWN | {place.ADDRESS_VARIABLE: "fd00::1", place.PORT_VARIABLE: "77"})
    assert six["KERAS_DISTRIBUTION_JOB_ADDRESSES"] == "[fd00::1]:77"
