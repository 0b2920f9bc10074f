"""What runs in a task of Spark: an agent in a process of its own, which the task waits for.

The driver sends this module's function to the executors by name, so they need tfdist, at the same version.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any, NamedTuple

from tfdist.launch.function.embedded import EmbeddedAgent, Offer

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_PATH = "PYTHONPATH"


class Ended(NamedTuple):
    """How the agent of a task has ended, whether the launcher was never reached, and the last that it said."""

    task: int
    status: int
    was_alone: bool
    said: str


def serve(offer: Offer, number: int, context: Any, elastic: bool) -> list[Ended]:
    """Runs an agent for one rank until the job ends. It ends with this process.

    Args:
        offer: From the driver.
        number: Of the task: the rank, if all tasks come.
        context: The task's context.
        elastic: Whether Spark may try the task again.

    Returns:
        How it has ended; empty if there was none, because Spark has tried the task again.

    Raises:
        RuntimeError: If the agent of an elastic job was killed, so that Spark tries the task again.
    """
    # A job that has failed is not tried again by Spark: who has called `run` decides.
    if context.attemptNumber() and not elastic:
        return []
    agent = EmbeddedAgent(offer, f"task-{number}", {**devices(context.resources()), **packages()})
    status = agent.wait()
    if elastic and status < 0:
        name = signal.Signals(-status).name
        raise RuntimeError(f"tfdist: the agent of task {number} was killed by {name}, and its rank with it")
    return [Ended(number, status, agent.was_alone(), agent.said())]


def devices(resources: Any) -> dict[str, str]:
    """The variable that shows a rank the GPUs that Spark has given to its task alone; none if it has not."""
    return {_VISIBLE: ",".join(resources["gpu"].addresses)} if "gpu" in resources else {}


def packages() -> dict[str, str]:
    """The variable by which a rank finds what `--py-files` and `addPyFile` have brought to its task, if any."""
    from pyspark import SparkFiles

    root = SparkFiles.getRootDirectory()  # which may be relative to the folder of the task
    brought = [entry for entry in sys.path if entry.startswith(f"{root}{os.sep}")]
    brought += [root] if any(name.endswith(".py") for name in os.listdir(root)) else []
    paths = [*map(os.path.abspath, brought), *filter(None, [os.environ.get(_PATH)])]
    return {_PATH: os.pathsep.join(paths)} if brought else {}
