"""Slurm's srun: its arguments and variables, and a trial of whether it can start MPI programs.

The ranks' MPI finds its peers through PMIx, so Slurm needs a compatible PMIx plugin.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping, Sequence

from tfdist.launch.host.cluster import slurm
from tfdist.launch.start.starter import Starter

TRIAL_S = 20.0
_LIST_S = 10.0
_PATIENCE_S = 5.0
_STEP_TASKS = "SLURM_STEP_TASKS_PER_NODE"
_PROBE = "from mpi4py import MPI; print('ranks', MPI.COMM_WORLD.size)"


class Srun(Starter):
    """One call of srun inside a Slurm job; `path` and `extra` are for srun. The daemons are Slurm's own."""

    name = "srun"
    manager = "Slurm"
    job_variable = "SLURM_JOB_ID"
    tried = True
    place_variables = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NODEID", _STEP_TASKS)

    def command(self, supervisor: Sequence[str], environment: Mapping[str, str]) -> list[str]:
        """The arguments; srun passes on all of `environment` by itself."""
        slots = {host.slots for host in self.hosts}
        words = [self.path, "--mpi=pmix", "--overlap", "--export=ALL", "--input=none", "--kill-on-bad-exit=0"]
        words += [f"--ntasks={self.processes}", f"--nodes={len(self.hosts)}", "--distribution=block"]
        words.append("--nodelist=" + ",".join(host.name for host in self.hosts))
        if len(slots) == 1:
            words.append(f"--ntasks-per-node={slots.pop()}")
        if cores := environment.get("SLURM_CPUS_PER_TASK"):
            words.append(f"--cpus-per-task={cores}")  # set for the job, but srun does not inherit it
        return [*words, *(self.binding or ()), *self.extra, *supervisor]

    @classmethod
    def place(cls, environment: Mapping[str, str]) -> tuple[str, ...]:
        """The place as set by Slurm. A shell in a job has these variables too; only an MPI program has that of PMIx."""
        told = super().place(environment)
        if not told or not environment.get("PMIX_RANK"):
            return ()
        rank, size, local_rank, host, tasks = told
        return (rank, size, local_rank, str(slurm.counts(tasks, _STEP_TASKS)[int(host)]))

    def obstacle(self, python: str, environment: Mapping[str, str]) -> str:
        return shortage(self.path, python, self.processes, environment)


def shortage(srun: str, python: str, ranks: int, environment: Mapping[str, str]) -> str:
    """Why srun cannot start an MPI program here; empty if it can. Takes at most 30 s.

    The trial uses two ranks: a single one would start even without Slurm's help.

    Args:
        srun: The program.
        python: The Python interpreter of the ranks, with mpi4py.
        ranks: The number of ranks of the job.
        environment: The environment of the ranks.
    """
    said = _said([srun, "--mpi=list"], environment, _LIST_S)
    if isinstance(said, str):
        return f"`srun --mpi=list` {said}"
    if not any(word.startswith("pmix") for word in (said.stdout + said.stderr).split()):
        return "`srun --mpi=list` does not list pmix, which Open MPI needs to find its peers"
    count = min(2, ranks)
    words = [srun, "--mpi=pmix", "--overlap", "--input=none", f"--ntasks={count}", "--time=1", python, "-c", _PROBE]
    said = _said(words, environment, TRIAL_S)
    if isinstance(said, str):
        return f"a trial of {count} ranks with srun {said}"
    found = [line for line in said.stdout.splitlines() if line.startswith("ranks ")]
    if found != [f"ranks {count}"] * count:
        return f"in a trial of {count} ranks with srun, the ranks did not find each other"
    return ""


def _said(words: list[str], environment: Mapping[str, str], timeout_s: float) -> subprocess.CompletedProcess[str] | str:
    """A program's output, or how it failed, as the end of a sentence."""
    try:
        process = subprocess.Popen(
            words,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
    except OSError as error:
        return f"cannot be run ({error.strerror})"
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _end(process)
        return f"did not finish within {timeout_s:g} s"
    if process.returncode != 0:
        return f"exited with status {process.returncode}: {_telling(err)}"
    return subprocess.CompletedProcess(words, 0, out, err)


def _end(process: subprocess.Popen[str]) -> None:
    """Terminates srun with SIGTERM, on which it ends its step."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        process.send_signal(signum)
        try:
            process.communicate(timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired:
            continue
        return


def _telling(text: str) -> str:
    """The first line with an error, which is closest to its cause."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line.lower()), lines[0] if lines else "no output")
