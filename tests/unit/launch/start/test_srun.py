"""Tests of tfdist.launch.start.srun: its words, and its trial with programs in the place of srun."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path

import pytest

from tfdist.launch.host.core import Cores
from tfdist.launch.host.host import Host
from tfdist.launch.start import srun
from tfdist.launch.start.srun import Srun

CALL = Srun("/s/srun", (Host("n1", 2), Host("n2", 2)), local=False, cores=Cores(8, bindable=True), network=None)
ENVIRONMENT = {"PATH": os.environ["PATH"]}
PMIX = 'case "$*" in --mpi=list) echo "MPI plugin types are..."; echo "    pmix_v4"; exit ;; esac\n'


def _words(call: Srun, **variables: str) -> str:
    return " ".join(call.command(["task"], variables))


def test_words() -> None:
    assert _words(CALL, TFDIST_RUN_KEY="secret") == (
        "/s/srun --mpi=pmix --overlap --export=ALL --input=none --kill-on-bad-exit=0 --ntasks=4 --nodes=2 "
        "--distribution=block --nodelist=n1,n2 --ntasks-per-node=2 task"
    )


def test_unequal_numbers_of_ranks() -> None:
    words = _words(dataclasses.replace(CALL, hosts=(Host("n1", 2), Host("n2", 1))))
    assert "--ntasks=3 --nodes=2" in words
    assert "--ntasks-per-node" not in words


def test_words_of_the_user_and_cores_of_the_job() -> None:
    call = dataclasses.replace(CALL, binding=("--cpu-bind=none",), extra=("--time=5",))
    assert _words(call, SLURM_CPUS_PER_TASK="3").endswith(" --cpus-per-task=3 --cpu-bind=none --time=5 task")


def test_settings_are_those_of_mpi_without_mpirun() -> None:
    assert CALL.settings({}, root=False) == {"OMPI_MCA_btl": "^ofi", "OMPI_MCA_mtl": "^ofi", "OMPI_MCA_osc": "^ucx"}
    settings = dataclasses.replace(CALL, interfaces=("eth0",), fabric=True).settings({}, root=False)
    assert settings == {"OMPI_MCA_btl_tcp_if_include": "eth0", "NCCL_SOCKET_IFNAME": "eth0"}


def _shortage(folder: Path, script: str, ranks: int = 4) -> str:
    program = folder / "srun"
    program.write_text(f"#!/bin/sh\n{script}")
    program.chmod(0o755)
    return srun.shortage(str(program), sys.executable, ranks, ENVIRONMENT)


@pytest.mark.parametrize(("ranks", "tasks"), [(1, 1), (2, 2), (9, 2)])
def test_trial_that_goes_well(tmp_path: Path, ranks: int, tasks: int) -> None:
    words = f'echo "$*" >{tmp_path}/words\n' + f"echo other\necho ranks {tasks}\n" * tasks
    assert _shortage(tmp_path, PMIX + words, ranks) == ""
    told = (tmp_path / "words").read_text()
    assert told.startswith(
        f"--mpi=pmix --overlap --input=none --ntasks={tasks} --time=1 {sys.executable} -c from mpi4py"
    )


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo none pmi2; exit 0", "`srun --mpi=list` does not list pmix"),
        ("echo '  error: no Slurm' >&2; exit 1", "`srun --mpi=list` exited with status 1: error: no Slurm"),
        ("exit 3", "`srun --mpi=list` exited with status 3: no output"),
        (PMIX + "echo ranks 1; echo ranks 1", "in a trial of 2 ranks with srun, the ranks did not find each other"),
        (PMIX + "echo ranks 2", "in a trial of 2 ranks with srun, the ranks did not find each other"),
        (
            PMIX + "echo 'srun: launch' >&2; echo 'srun: error: Plugin init() callback failed' >&2; exit 1",
            "a trial of 2 ranks with srun exited with status 1: srun: error: Plugin init() callback failed",
        ),
    ],
)
def test_trial_that_fails(tmp_path: Path, script: str, reason: str) -> None:
    assert _shortage(tmp_path, script).startswith(reason)


@pytest.mark.parametrize("ignored", ["", "trap '' TERM\n"])
def test_trial_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ignored: str) -> None:
    monkeypatch.setattr(srun, "TRIAL_S", 0.3)
    monkeypatch.setattr(srun, "_PATIENCE_S", 0.3)
    script = f"{PMIX}{ignored}echo $$ >{tmp_path}/pid\nexec sleep 1000\n"
    assert _shortage(tmp_path, script) == "a trial of 2 ranks with srun did not finish within 0.3 s"
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_program_that_is_none(tmp_path: Path) -> None:
    assert "cannot be run (No such file" in srun.shortage(str(tmp_path / "srun"), sys.executable, 2, ENVIRONMENT)
