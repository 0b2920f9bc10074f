"""Tests of tfdist.launch.start.direct."""

from __future__ import annotations

from dataclasses import replace

from tfdist.launch.host.core import Cores
from tfdist.launch.host.host import Host
from tfdist.launch.start import place
from tfdist.launch.start.direct import Direct
from tfdist.system import job_place

HERE = Direct("python", (Host("localhost", 3),), True, Cores(2, bindable=True))
OWN = dict(zip(job_place.OWN, ("2", "3", "1", "2"), strict=True))


def test_ranks_of_this_machine() -> None:
    assert HERE.command(["python", "task.py"], {}) == ["python", "task.py", "0", "3", "3"]


def test_variables_for_nccl() -> None:
    assert HERE.settings({}, root=True) == {}
    assert replace(HERE, tcp=True).settings({}, root=True) == {"NCCL_NET": "Socket"}
    assert replace(HERE, tcp=True).settings({"NCCL_NET": "IB"}, root=True) == {}
    assert replace(HERE, interfaces=("a", "b")).settings({}, root=False) == {"NCCL_SOCKET_IFNAME": "a,b"}


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
