"""Tests of tfdist.launch.start.choice, and of what tfdistrun says of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tfdist.errors import ConfigError
from tfdist.launch import command
from tfdist.launch.host import host
from tfdist.launch.host.cluster.allocation import Allocation
from tfdist.launch.host.core import Cores
from tfdist.launch.host.host import Host
from tfdist.launch.option import option
from tfdist.launch.start import choice, srun
from tfdist.launch.start.hydra import Hydra
from tfdist.launch.start.jsrun import Jsrun
from tfdist.launch.start.mpirun import Mpirun
from tfdist.launch.start.srun import Srun

HOSTS = (Host("n1", 2), Host("n2", 2))
CALL = Mpirun("/m/mpirun", HOSTS, local=False, cores=Cores(2, bindable=True), extra=("--x",))
SLURM = Allocation("Slurm", HOSTS, "SLURM_JOB_NODELIST")
JOB = {"SLURM_JOB_ID": "7", "LSB_JOBID": "8"}


@pytest.fixture
def programs(tmp_path: Path) -> dict[str, str]:
    """The environment of a job in which srun and jsrun are on PATH."""
    for name in ("srun", "jsrun"):
        (tmp_path / name).touch(mode=0o755)
    return JOB | {"PATH": str(tmp_path)}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, str]]:
    """What the trial was called with; it goes well."""
    calls: list[tuple[str, int, str]] = []

    def shortage(path: str, python: str, ranks: int, environment: dict[str, str]) -> str:
        calls.append((path, ranks, environment["OMPI_MCA_btl"]))
        return ""

    monkeypatch.setattr(srun, "shortage", shortage)
    return calls


def test_slurm_after_a_trial(programs: dict[str, str], asked: list[tuple[str, int, str]]) -> None:
    call, why = choice.choose(None, CALL, SLURM, programs)
    path = f"{programs['PATH']}/srun"
    assert asked == [(path, 4, "^ofi")]
    assert type(call) is Srun
    assert (call.path, call.hosts, call.extra, why) == (path, HOSTS, ("--x",), "a trial succeeded")


def test_mpirun_where_the_trial_fails(programs: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(srun, "shortage", lambda *_: "there is no pmix")
    assert choice.choose(None, CALL, SLURM, programs) == (CALL, "not srun: there is no pmix")
    with pytest.raises(ConfigError, match=r"--srun cannot be used: there is no pmix. Omit it to start with mpirun"):
        choice.choose("srun", CALL, SLURM, programs)


def test_mpirun_without_a_trial(programs: dict[str, str], asked: list[tuple[str, int, str]]) -> None:
    assert choice.choose(None, CALL, SLURM, programs | {"PATH": "/none"}) == (
        CALL,
        "not srun: there is no srun on PATH",
    )
    assert choice.choose("mpirun", CALL, SLURM, programs) == (CALL, "chosen by an option")
    assert choice.choose(None, CALL, None, programs) == (CALL, "")
    assert choice.choose(None, CALL, dataclasses.replace(SLURM, manager="LSF"), programs) == (CALL, "")
    assert asked == []


def test_mpirun_of_mpich_is_mpirun_too(programs: dict[str, str]) -> None:
    of_mpich = Hydra("/m/mpirun", HOSTS, local=False, cores=Cores(2, bindable=True))
    assert choice.choose("mpirun", of_mpich, None, programs) == (of_mpich, "chosen by an option")


def test_starter_that_the_user_wants(programs: dict[str, str], asked: list[tuple[str, int, str]]) -> None:
    call, why = choice.choose("jsrun", CALL, None, programs)
    assert type(call) is Jsrun
    assert (call.path, why, asked) == (f"{programs['PATH']}/jsrun", "chosen by an option", [])
    call, why = choice.choose("srun", CALL, None, programs)
    assert (type(call), why, len(asked)) == (Srun, "chosen by an option", 1)


@pytest.mark.parametrize(
    ("wanted", "change", "message"),
    [
        ("srun", {"SLURM_JOB_ID": ""}, "--srun cannot be used: SLURM_JOB_ID is not set, so this is not a job of Slurm"),
        ("jsrun", {"LSB_JOBID": ""}, "--jsrun cannot be used: LSB_JOBID is not set, so this is not a job of LSF"),
        ("jsrun", {"PATH": "/none"}, "--jsrun cannot be used: there is no jsrun on PATH"),
    ],
)
def test_refused(programs: dict[str, str], wanted: str, change: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        choice.choose(wanted, CALL, None, programs | change)


def test_hosts_of_an_allocation() -> None:
    summit = {"LSB_MCPU_HOSTS": "batch5 1 a 42 b 42"}
    for wanted, names in ((None, "batch5 a b"), ("mpirun", "batch5 a b"), ("jsrun", "a b")):
        found = choice.allocation(wanted, summit)
        assert found is not None
        assert [each.name for each in found.hosts] == names.split()
    assert choice.allocation("jsrun", {}) is None


def test_each_starter_has_an_option() -> None:
    (_, *others) = choice.KINDS
    for words, name in [(["--mpi"], "mpirun"), *(([f"--{name}"], name) for name in others)]:
        assert option.parse(["-np", "1", *words, "x"])[0].starter == name


def test_only_one_starter() -> None:
    with pytest.raises(ConfigError, match="--srun: not allowed with argument --mpi"):
        option.parse(["-np", "1", "--mpi", "--srun", "x"])


def test_starter_of_the_command_line_replaces_the_files(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("srun: true\nnum-proc: 1\n")
    assert option.parse(["--config-file", str(tmp_path / "f"), "x"])[0].starter == "srun"
    assert option.parse(["--config-file", str(tmp_path / "f"), "--mpi", "x"])[0].starter == "mpirun"


def test_choice_is_told_in_verbose_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "is_local", lambda _: False)
    monkeypatch.setattr(host, "address", lambda name: f"192.0.2.{name[-1]}")
    monkeypatch.setattr(srun, "shortage", lambda *_: "it hangs")
    variables = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": ""}
    known, user = option.parse(["--verbose", "sh"], lambda _: SLURM)
    _, remarks = command.make_plan(known, user, variables)
    assert remarks[:2] == [
        "mpirun starts the ranks: not srun: SLURM_JOB_ID is not set, so this is not a job of Slurm",
        "4 ranks on hosts of the allocation n1:2, n2:2, from Slurm's SLURM_JOB_NODELIST",
    ]
    assert remarks[2].startswith("network between the hosts: ")
    assert len(remarks) == 3
