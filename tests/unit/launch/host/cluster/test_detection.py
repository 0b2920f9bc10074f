"""Tests of tfdist.launch.host.cluster.detection, and of what tfdistrun makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfdist.errors import ConfigError
from tfdist.launch import command
from tfdist.launch.host import host
from tfdist.launch.host.cluster.detection import detect
from tfdist.launch.host.host import Host
from tfdist.launch.option import option
from tfdist.launch.run.plan import Plan

SLURM = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "3,2"}


def _plan(*words: str) -> tuple[Plan, list[str]]:
    known, user = option.parse(words, lambda _: detect(SLURM))
    return command.make_plan(known, user, {"PATH": "/usr/bin:/bin"})


@pytest.fixture
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "is_local", lambda name: name == "localhost")
    monkeypatch.setattr(host, "address", lambda name: f"192.0.2.{name[-1]}")


def test_each_manager_is_asked(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("n1\n")
    for manager, variables in {
        "Slurm": SLURM,
        "LSF": {"LSB_MCPU_HOSTS": "a 2"},
        "PBS": {"PBS_NODEFILE": str(tmp_path / "f")},
        "SageMaker": {"SM_HOSTS": '["algo-1"]'},
        "MPIJob": {"OMPI_MCA_orte_default_hostfile": str(tmp_path / "f")},
    }.items():
        found = detect(variables)
        assert found is not None
        assert found.manager == manager
    assert detect({"PATH": "/bin", "HOME": "/"}) is None


@pytest.mark.usefixtures("_known")
def test_ranks_take_all_slots_of_the_allocation() -> None:
    plan, remarks = _plan("--verbose", "sh")
    assert plan.starter.hosts == (Host("n1", 3), Host("n2", 2))
    said = "5 ranks on hosts of the allocation n1:3, n2:2, from Slurm's SLURM_JOB_NODELIST and SLURM_TASKS_PER_NODE"
    assert said in remarks
    assert _plan("sh")[1] == []


@pytest.mark.usefixtures("_known")
def test_fewer_ranks_than_slots() -> None:
    plan, remarks = _plan("--verbose", "-np", "4", "sh")
    assert plan.starter.hosts == (Host("n1", 3), Host("n2", 1))
    assert [line for line in remarks if line.startswith("4 ranks on hosts of the allocation")]


@pytest.mark.usefixtures("_known")
def test_more_ranks_than_slots() -> None:
    with pytest.raises(ConfigError, match=r"-np 6 exceeds the 5 slots of n1:3, n2:2, .* Request more tasks from Slurm"):
        _plan("-np", "6", "sh")


@pytest.mark.usefixtures("_known")
def test_hosts_that_are_named_win(tmp_path: Path) -> None:
    plan, remarks = _plan("--verbose", "-np", "1", "-H", "other9:1", "sh")
    assert plan.starter.hosts == (Host("other9", 1),)
    assert not [line for line in remarks if "allocation" in line]
    (tmp_path / "hosts").write_text("other8\n")
    plan, _ = _plan("-np", "1", "--hostfile", str(tmp_path / "hosts"), "sh")
    assert plan.starter.hosts == (Host("other8", 1),)
    plan, _ = _plan("-H", "other9:2", "sh")
    assert plan.starter.hosts == (Host("other9", 2),)


def test_values_that_cannot_be_used_end_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[2-1]")
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "1")
    assert command.main(["-np", "1", "sh"]) == command.USAGE_ERROR
    assert "tfdistrun: SLURM_JOB_NODELIST=n[2-1]: [2-1] is not a range" in capsys.readouterr().err


def test_job_from_python_stays_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    launcher, console = command.prepare(["-np", "2", "sh"])
    launcher._channel.close()
    console.close()
    assert launcher.job.hosts == ["localhost", "localhost"]
