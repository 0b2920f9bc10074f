"""A cluster of Slurm with one node, this machine: munged, slurmctld and slurmd with files and ports of their own.

No test of its own.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

PROGRAMS = ("munged", "slurmctld", "slurmd", "salloc", "sbatch", "sinfo")
# Trust in the number of cores is needed where the machine has fewer.
CONFIGURATION = """\
ClusterName=test
SlurmctldHost={name}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={controller}
SlurmdPort={daemon}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
NodeName={name} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=10 State=UP
"""


@dataclass(frozen=True)
class Slurm:
    """What commands of the cluster are to be started with."""

    name: str
    variables: Mapping[str, str]

    def jobs(self) -> str:
        words = ["squeue", "--noheader"]
        return subprocess.run(words, env={**os.environ, **self.variables}, capture_output=True, text=True).stdout


@contextlib.contextmanager
def started_in(folder: Path, environment: Mapping[str, str], wait_until: Callable[..., None]) -> Iterator[Slurm]:
    """The cluster, until the end of the block."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{missing[0]} is missing; on Debian: apt-get install slurm-wlm munge")
    configuration = _configure(folder)
    variables = {**environment, "SLURM_CONF": str(configuration)}
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(128))
    own = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "log", "pid", "seed")]
    programs = [
        ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *own],
        ["slurmctld", "-D", "-i"],
        ["slurmd", "-D"],
    ]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for words in programs:
            with open(folder / f"{words[0]}.out", "wb") as out:
                started.append(subprocess.Popen(words, env=variables, stdin=subprocess.DEVNULL, stdout=out, stderr=out))
            if words[0] == "munged":
                wait_until((folder / "munge.socket").exists, seconds=20, what="munged")
        wait_until(lambda: _is_idle(variables), seconds=60, what=f"a node that is idle; see {folder}/*.log")
        yield Slurm(os.uname().nodename.split(".")[0], {"SLURM_CONF": str(configuration)})
    finally:
        for process in reversed(started):
            _end(process)


def _configure(folder: Path) -> Path:
    ports = []
    for _ in range(2):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            ports.append(probe.getsockname()[1])
    for name in ("state", "spool"):
        (folder / name).mkdir()
    name = os.uname().nodename.split(".")[0]
    values = {"name": name, "user": getpass.getuser(), "folder": folder, "controller": ports[0], "daemon": ports[1]}
    (folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
    path = folder / "slurm.conf"
    path.write_text(CONFIGURATION.format(**values))
    return path


def _is_idle(variables: Mapping[str, str]) -> bool:
    words = ["sinfo", "--noheader", "--format=%t"]
    try:
        done = subprocess.run(words, env=variables, capture_output=True, text=True, timeout=10)
    except subprocess.TimeoutExpired:  # nobody answers yet
        return False
    return done.stdout.strip() == "idle"


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
