"""Tells whether this process is the rank that a launcher started, or was started by a rank.

Child processes of a rank inherit the variables of its launcher, and would mistake themselves for the rank. So a rank
leaves a mark in the environment when `init` has returned: a process that finds another process's mark is not a rank. A
process that was started earlier, such as a script by a wrapper, finds no mark and is the rank.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path

MARK_VARIABLE = "TFDIST_RANK_PROCESS"
# What launchers set in the environment of the processes they start.
_LAUNCHER_PREFIXES = ("OMPI_COMM_WORLD_", "PMIX_", "PMI_", "MPI_LOCAL", "KERAS_DISTRIBUTION_", "TORCHELASTIC_")
# Only for the rank itself: its place in an elastic job, and files and ports that two processes cannot share.
_OF_THE_RANK = (
    *("TFDIST_LAUNCHED", "TFDIST_RANK", "TFDIST_SIZE", "TFDIST_LOCAL_RANK", "TFDIST_LOCAL_SIZE"),
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TF_CONFIG"),
    *("TFDIST_ELASTIC", "TFDIST_MEMBER_PIPE", "TFDIST_MEMBER_NEWS", "TFDIST_LISTEN_ADDRESS"),
    *("TFDIST_COMMITS", "TFDIST_LEAVE", "TFDIST_COMMITS_BACKUP", "TFDIST_NEWCOMER"),
    *("TFDIST_TIMELINE", "HOROVOD_TIMELINE", "TFDIST_METRICS_PORT"),
    *("TFDIST_AUTOTUNE_LOG", "HOROVOD_AUTOTUNE_LOG", "TFDIST_AUTOTUNE_RESULT"),
)
# Identifies the start by the launcher: a launcher that a rank starts begins a new job.
_STARTS = ("TFDIST_JOB_ID", "TFDIST_RANK", "PMIX_NAMESPACE", "PMIX_RANK", "PMI_JOBID", "PMI_RANK", "PMI_FD", "PMI_PORT")
# The same of a start by others, if there is none of these.
_OTHER_STARTS = ("TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TF_CONFIG")


def mark(rank: str) -> None:
    """Leaves the mark of this process, a rank, for all its future child processes."""
    os.environ[MARK_VARIABLE] = ":".join((*_identity(), rank, _start(os.environ)))


def origin(environment: Mapping[str, str] | None = None) -> str:
    """The rank that started this process, directly or indirectly; empty if none did.

    Args:
        environment: Mapping to read; default `os.environ`.
    """
    process, began, rank, start = _read(os.environ if environment is None else environment)
    return rank if start and (process, began) != _identity() else ""


def is_again() -> bool:
    """Whether this process was the rank, and has since replaced its program (`os.exec`)."""
    process, began, _, start = _read(os.environ)
    return bool(start) and (process, began) == _identity()


def own_environment() -> Mapping[str, str]:
    """The environment, without what is meant for the rank only if a rank started this process."""
    return without_rank(os.environ) if MARK_VARIABLE in os.environ and origin() else os.environ


def without_rank(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without the variables that make a process a rank of a job."""
    gone = (MARK_VARIABLE, *_OF_THE_RANK)
    return {
        name: value
        for name, value in environment.items()
        if name not in gone and not name.startswith(_LAUNCHER_PREFIXES)
    }


def _read(environment: Mapping[str, str]) -> tuple[str, str, str, str]:
    """The parts of the mark; all empty if there is none from this job."""
    process, began, rank, start = (environment.get(MARK_VARIABLE, "").split(":", 3) + [""] * 4)[:4]
    return (process, began, rank, start) if start and start == _start(environment) else ("", "", "", "")


def _start(environment: Mapping[str, str]) -> str:
    for names in (_STARTS, _OTHER_STARTS):
        if any(environment.get(name) for name in names):
            return "|".join(environment.get(name, "") for name in names)
    return ""


def _identity() -> tuple[str, str]:
    """The id of this process and its start time, since ids are reused."""
    process = os.getpid()
    return str(process), _beginning(process)


@functools.cache
def _beginning(process: int) -> str:
    stat = Path(f"/proc/{process}/stat").read_text()
    # The name in parentheses may contain spaces and parentheses: the fields begin after the last one.
    return stat[stat.rindex(")") + 2 :].split()[19]
