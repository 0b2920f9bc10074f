"""What runs in a task of Spark: an agent in a process of its own, which the task waits for.

The driver sends this module's function to the executors by name, so they need tfdist, at the same version.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tfdist.launch.agent import summoned
from tfdist.launch.function import worker
from tfdist.system.process import before_exec

_SAID_BYTES = 4096
# Of the name of a host, to which that of the task is added: names have at most 64 characters.
_LONGEST = 48
_VISIBLE = "CUDA_VISIBLE_DEVICES"
# Of the executor, for the ranks: the launcher's own replace them on the way.
_OWN = ("PATH", "PYTHONPATH", "PYTHONHOME")
_PREFIX = "_TFDIST_TASK_"
# The program of a rank where its executor knows which: its interpreter, and the worker of its tfdist.
PROGRAM = (
    "/bin/sh",
    "-c",
    "; ".join(
        [f'[ -z "${{{_PREFIX}{name}+x}}" ] && unset {name} || export {name}="${_PREFIX}{name}"' for name in _OWN]
        + [f'exec "${_PREFIX}PYTHON" "${_PREFIX}WORKER" "$@"']
    ),
    "rank",
)


@dataclass(frozen=True)
class Offer:
    """What an agent needs: the launcher's address as HOST:PORT, the key, the number of tasks; whether more may come."""

    launcher: str
    key: str = field(repr=False)
    tasks: int
    elastic: bool = False


class Ended(NamedTuple):
    """How the agent of a task has ended, and the last that it said."""

    task: int
    status: int
    said: str


def serve(offer: Offer, number: int, context: Any) -> Iterator[Ended]:
    """Runs an agent for one rank until the job ends. It ends with this process.

    Args:
        offer: From the driver.
        number: Of the task: the rank, if all tasks come.
        context: The task's context.

    Raises:
        RuntimeError: If the agent of an elastic job was killed, so that Spark tries the task again.
    """
    # A job that has failed is not tried again by Spark: who has called `run` decides.
    if context.attemptNumber() and not offer.elastic:
        return
    program = [sys.executable, "-I", "-S", str(Path(summoned.__file__).resolve())]
    words = [*program, offer.launcher, "1", f"{os.uname().nodename[:_LONGEST]}.task-{number}", "shared"]
    with tempfile.TemporaryFile() as errors:
        agent = subprocess.Popen(
            words,
            env=environment(context.resources()),
            stdin=subprocess.PIPE,
            stdout=errors,
            stderr=errors,
            preexec_fn=before_exec(signal.SIGTERM, own_session=True),  # noqa: PLW1509  (the worker has one thread)
        )
        agent.communicate(offer.key.encode() + b"\n")
        said = os.pread(errors.fileno(), _SAID_BYTES, max(0, os.fstat(errors.fileno()).st_size - _SAID_BYTES))
    if offer.elastic and agent.returncode < 0:
        name = signal.Signals(-agent.returncode).name
        raise RuntimeError(f"tfdist: the agent of task {number} was killed by {name}, and its rank with it")
    yield Ended(number, agent.returncode, said.decode(errors="replace").strip())


def environment(resources: Any) -> dict[str, str]:
    """The environment of an agent: that of the task, what `PROGRAM` needs, and the GPUs that Spark has given to it."""
    kept = {f"{_PREFIX}{name}": os.environ[name] for name in _OWN if name in os.environ}
    found = {
        **os.environ,
        **kept,
        f"{_PREFIX}PYTHON": sys.executable,
        f"{_PREFIX}WORKER": os.path.abspath(worker.__file__),
    }
    if "gpu" in resources:
        found[_VISIBLE] = ",".join(resources["gpu"].addresses)
    return found
