"""Tests of tfdist.launch.host.cluster.mpijob."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfdist.errors import ConfigError
from tfdist.launch.host.cluster import mpijob
from tfdist.launch.host.host import Host

HOSTFILE = "train-worker-0.train.default.svc slots=2\ntrain-worker-1.train.default.svc slots=2\n"
WORKERS = (Host("train-worker-0.train.default.svc", 2), Host("train-worker-1.train.default.svc", 2))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "hostfile").write_text(HOSTFILE)
    return tmp_path / "hostfile"


@pytest.mark.parametrize("name", ["OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile"])
def test_recorded_environment(file: Path, name: str) -> None:
    recorded = {
        "KUBERNETES_SERVICE_HOST": "10.96.0.1",
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
        name: str(file),
    }
    found = mpijob.find(recorded)
    assert found is not None
    assert (found.manager, found.hosts, found.slots) == ("MPIJob", WORKERS, 4)
    assert found.source == f"{name}={file}"


def test_file_that_is_mounted_counts_in_kubernetes_alone(file: Path) -> None:
    found = mpijob.find({"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, mounted=file)
    assert found is not None
    assert found.hosts == WORKERS
    assert mpijob.find({}, mounted=file) is None
    assert mpijob.find({"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, mounted=file.parent / "none") is None


def test_other_form_of_a_line(file: Path) -> None:
    file.write_text("worker-0:3\n")
    found = mpijob.find({"KUBERNETES_SERVICE_HOST": "x"}, mounted=file)
    assert found is not None
    assert found.hosts == (Host("worker-0", 3),)


@pytest.mark.parametrize(
    ("text", "message"), [("", "no hosts found"), ("a slots=x\n", "hostfile:1: 'x' is not a number")]
)
def test_refused(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError, match=f"OMPI_MCA_orte_default_hostfile=.*{message}"):
        mpijob.find({"OMPI_MCA_orte_default_hostfile": str(file)})


def test_file_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="OMPI_MCA_orte_default_hostfile=/none cannot be read"):
        mpijob.find({"OMPI_MCA_orte_default_hostfile": "/none"})
