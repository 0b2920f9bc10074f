"""Tests of tfdist.launch.host.cluster.pbs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfdist.errors import ConfigError
from tfdist.launch.host.cluster import pbs
from tfdist.launch.host.host import Host


def test_recorded_environment(tmp_path: Path) -> None:
    """Of `qsub -l select=2:mpiprocs=2+1:mpiprocs=1`; lines of a host need not be together."""
    (tmp_path / "42.server").write_text("n1.example\nn2.example\nn1.example\nn2.example\nn3.example\n\n")
    recorded = {"PBS_JOBID": "42.server", "PBS_NODEFILE": str(tmp_path / "42.server"), "PBS_NUM_NODES": "3"}
    found = pbs.find(recorded)
    assert found is not None
    assert found.hosts == (Host("n1.example", 2), Host("n2.example", 2), Host("n3.example", 1))
    assert (found.manager, found.source, found.slots) == ("PBS", "PBS_NODEFILE", 5)


def test_outside_of_a_job() -> None:
    assert pbs.find({"PBS_SERVER": "server"}) is None


@pytest.mark.parametrize(
    ("text", "message"), [("", "no hosts found"), ("\n \n", "no hosts found"), ("n1 slots=2\n", "is not a host name")]
)
def test_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "nodes").write_text(text)
    with pytest.raises(ConfigError, match=f"PBS_NODEFILE={tmp_path}/nodes: .*{message}"):
        pbs.find({"PBS_NODEFILE": str(tmp_path / "nodes")})


def test_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"PBS_NODEFILE=.* cannot be read"):
        pbs.find({"PBS_NODEFILE": str(tmp_path / "none")})
    (tmp_path / "bytes").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"PBS_NODEFILE=.* cannot be read"):
        pbs.find({"PBS_NODEFILE": str(tmp_path / "bytes")})
