"""Tests of tfdist.launch.host.cluster.slurm."""

from __future__ import annotations

import re

import pytest

from tfdist.errors import ConfigError
from tfdist.launch.host.cluster import slurm
from tfdist.launch.host.host import Host

# As sbatch sets it on the first node of `-N 4 -n 7`; what has no meaning here is left out.
RECORDED = {
    "SLURM_JOB_ID": "217",
    "SLURM_JOB_NUM_NODES": "4",
    "SLURM_JOB_NODELIST": "gpu-a[08-10],login1",
    "SLURM_NODELIST": "gpu-a[08-10],login1",
    "SLURM_NTASKS": "7",
    "SLURM_TASKS_PER_NODE": "2(x3),1",
    "SLURM_JOB_CPUS_PER_NODE": "16(x4)",
    "SLURM_SUBMIT_HOST": "login1",
}


def test_recorded_environment() -> None:
    found = slurm.find(RECORDED)
    assert found is not None
    assert found.hosts == (Host("gpu-a08", 2), Host("gpu-a09", 2), Host("gpu-a10", 2), Host("login1", 1))
    assert found.slots == 7
    assert str(found) == (
        "gpu-a08:2, gpu-a09:2, gpu-a10:2, login1:1, from Slurm's SLURM_JOB_NODELIST and SLURM_TASKS_PER_NODE"
    )


def test_cores_where_no_tasks_are_given() -> None:
    found = slurm.find({"SLURM_JOB_NODELIST": "a,b", "SLURM_JOB_CPUS_PER_NODE": "4(x2)"})
    assert found is not None
    assert (found.hosts, found.source) == (
        (Host("a", 4), Host("b", 4)),
        "SLURM_JOB_NODELIST and SLURM_JOB_CPUS_PER_NODE",
    )


def test_outside_of_a_job() -> None:
    assert slurm.find({"SLURM_CONF": "/etc/slurm/slurm.conf", "SLURM_TASKS_PER_NODE": "2"}) is None


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", "n1"),
        ("n1,n3", "n1 n3"),
        ("n[1-3]", "n1 n2 n3"),
        ("n[1,3-4,9]x", "n1x n3x n4x n9x"),
        ("n[008-011]", "n008 n009 n010 n011"),
        ("n[8-11]", "n8 n9 n10 n11"),
        ("r[1-2]n[01-02],solo", "r1n01 r1n02 r2n01 r2n02 solo"),
        ("a-b[5]", "a-b5"),
    ],
)
def test_names(text: str, names: str) -> None:
    assert slurm.expand(text) == names.split()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n[1-3", "expected names such as node1,node"),
        ("n]", "expected names such as"),
        ("n[]", "expected names such as"),
        ("n1,,n2", "expected names such as"),
        ("n[[1]]", "expected names such as"),
        ("n[3-1]", "[3-1] is not a range of numbers"),
        ("n[a-b]", "[a-b] is not a range"),
        ("n[\u0661]", "is not a range"),
        ("n[1-]", "[1-] is not a range"),
        ("n[1-999999999]", "more than 65536 nodes"),
        ("n[1-9999][1-9999]", "more than 65536 nodes"),
    ],
)
def test_names_that_are_none(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^SLURM_JOB_NODELIST={re.escape(text)}: .*{re.escape(message)}"):
        slurm.expand(text)


def test_as_many_nodes_as_slurm_can_have() -> None:
    assert len(slurm.expand("n[1-65536]")) == 65536


@pytest.mark.parametrize(("text", "numbers"), [("1", [1]), ("2(x3),1", [2, 2, 2, 1]), ("4,1(x2)", [4, 1, 1])])
def test_counts(text: str, numbers: list[int]) -> None:
    assert slurm.counts(text, "T") == numbers


@pytest.mark.parametrize("text", ["", "0", "2(x", "2(3)", "a", "1,,1", "-1", "1(x9999999)", "2 (x3)"])
def test_counts_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match=f"^T={re.escape(text)}: .*such as 2"):
        slurm.counts(text, "T")


def test_counts_for_too_many_nodes() -> None:
    with pytest.raises(ConfigError, match="more than 65536 nodes"):
        slurm.counts("1(x65536),1", "T")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"SLURM_TASKS_PER_NODE": "2(x3)"},
            "names 4 nodes, but SLURM_TASKS_PER_NODE=2.* describes 3; name the hosts with -H",
        ),
        ({"SLURM_TASKS_PER_NODE": "", "SLURM_JOB_CPUS_PER_NODE": ""}, "neither SLURM_TASKS_PER_NODE nor"),
        ({"SLURM_JOB_NODELIST": "a,b,a,c"}, "host 'a' is listed twice"),
        ({"SLURM_JOB_NODELIST": "a,b,c,$(x)"}, "is not a host name"),
    ],
)
def test_refused(change: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        slurm.find(RECORDED | change)
