"""Tests of tfdist.launch.host.cluster.lsf."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfdist.errors import ConfigError
from tfdist.launch.host.cluster import lsf
from tfdist.launch.host.host import Host

# Of `bsub -n 5 -R "span[ptile=3]"`.
RECORDED = {
    "LSB_JOBID": "4711",
    "LSB_HOSTS": "node7 node7 node7 node2 node2",
    "LSB_MCPU_HOSTS": "node7 3 node2 2",
    "LSB_DJOB_NUMPROC": "5",
}


def test_file(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("node7\nnode7\nnode7\nnode2\nnode2\n")
    found = lsf.find({**RECORDED, "LSB_MCPU_HOSTS": "else 1", "LSB_DJOB_HOSTFILE": str(tmp_path / "hosts")})
    assert found is not None
    assert (found.manager, found.hosts, found.source) == (
        "LSF",
        (Host("node7", 3), Host("node2", 2)),
        "LSB_DJOB_HOSTFILE",
    )


def test_list() -> None:
    found = lsf.find(RECORDED)
    assert found is not None
    assert (found.hosts, found.source, found.slots) == ((Host("node7", 3), Host("node2", 2)), "LSB_MCPU_HOSTS", 5)


def test_outside_of_a_job() -> None:
    assert lsf.find({"LSF_ENVDIR": "/lsf/conf"}) is None


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"LSB_MCPU_HOSTS": "a 1 b"}, "LSB_MCPU_HOSTS=a 1 b: expected names with numbers"),
        ({"LSB_MCPU_HOSTS": "a x"}, "LSB_MCPU_HOSTS=a x: 'x' is not a number of slots"),
        ({"LSB_MCPU_HOSTS": "a 1 a 2"}, "host 'a' is listed twice"),
        ({"LSB_DJOB_HOSTFILE": "/no/such"}, "LSB_DJOB_HOSTFILE=/no/such cannot be read: .* -H host:slots"),
    ],
)
def test_refused(variables: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        lsf.find(variables)
