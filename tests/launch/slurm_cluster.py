"""A cluster of Slurm whose nodes are this machine: munged, slurmctld and slurmd with files and ports of their own.

No test of its own.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = os.uname().nodename.split(".")[0]
PROGRAMS = ("munged", "slurmctld", "slurmd", "salloc", "sbatch", "sinfo")
# Trust in the number of cores is needed where the machine has fewer.
NODE = "NodeName={node} NodeHostname={name} NodeAddr=127.0.0.1 Port={port} CPUs=2 State=UNKNOWN"
CONFIGURATION = """\
ClusterName=test
SlurmctldHost={name}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={controller}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
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
{nodes}
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


def run(launch: Any, slurm: Slurm, *words: str) -> Any:
    """Runs a command of Slurm; its end is that of the job."""
    started = subprocess.Popen(
        words,
        cwd=launch.folder,
        env={**launch.environment(), **slurm.variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    launch.started.append(started)
    return launch.end(started)


@contextlib.contextmanager
def started_in(
    folder: Path, environment: Mapping[str, str], wait_until: Callable[..., None], nodes: Sequence[str] = ()
) -> Iterator[Slurm]:
    """The cluster, until the end of the block. Its only node has this machine's name unless others are given."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{missing[0]} is missing; on Debian: apt-get install slurm-wlm munge")
    nodes = nodes or [HERE]
    configuration = _configure(folder, nodes)
    variables = {**environment, "SLURM_CONF": str(configuration)}
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(128))
    own = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "log", "pid", "seed")]
    programs = [
        ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *own],
        ["slurmctld", "-D", "-i"],
        *(["slurmd", "-D", "-N", node] for node in nodes),
    ]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for words in programs:
            with open(folder / f"{words[0]}.out", "ab") as out:
                started.append(subprocess.Popen(words, env=variables, stdin=subprocess.DEVNULL, stdout=out, stderr=out))
            if words[0] == "munged":
                wait_until((folder / "munge.socket").exists, seconds=20, what="munged")
        wait_until(lambda: _are_idle(variables), seconds=60, what=f"nodes that are idle; see {folder}/*.log")
        yield Slurm(HERE, {"SLURM_CONF": str(configuration)})
    finally:
        for process in reversed(started):
            _end(process)


def _configure(folder: Path, nodes: Sequence[str]) -> Path:
    controller, *ports = _free_ports(1 + len(nodes))
    for name in ("state", *(f"spool-{node}" for node in nodes)):
        (folder / name).mkdir()
    lines = [NODE.format(node=node, name=HERE, port=port) for node, port in zip(nodes, ports, strict=True)]
    values = {"name": HERE, "user": getpass.getuser(), "folder": folder, "controller": controller}
    values["nodes"] = "\n".join(lines)
    (folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
    path = folder / "slurm.conf"
    path.write_text(CONFIGURATION.format(**values))
    return path


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as open_until_all_are_known:
        probes = [open_until_all_are_known.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def _are_idle(variables: Mapping[str, str]) -> bool:
    words = ["sinfo", "--noheader", "--format=%t"]
    try:
        done = subprocess.run(words, env=variables, capture_output=True, text=True, timeout=10)
    except subprocess.TimeoutExpired:  # nobody answers yet
        return False
    return set(done.stdout.split()) == {"idle"}


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
