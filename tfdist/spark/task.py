"""What runs in a task of Spark: an agent in a process of its own, which the task waits for.

The driver sends this module's function to the executors by name, so they need tfdist, at the same version.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any, NamedTuple

from tfdist.launch.function.embedded import EmbeddedAgent, Offer

_VISIBLE = "CUDA_VISIBLE_DEVICES"


class Ended(NamedTuple):
    """How the agent of a task has ended, and the last that it said."""

    task: int
    status: int
    said: str


def serve(offer: Offer, number: int, context: Any, elastic: bool) -> Iterator[Ended]:
    """Runs an agent for one rank until the job ends. It ends with this process.

    Args:
        offer: From the driver.
        number: Of the task: the rank, if all tasks come.
        context: The task's context.
        elastic: Whether Spark may try the task again.

    Raises:
        RuntimeError: If the agent of an elastic job was killed, so that Spark tries the task again.
    """
    # A job that has failed is not tried again by Spark: who has called `run` decides.
    if context.attemptNumber() and not elastic:
        return
    agent = EmbeddedAgent(offer, f"task-{number}", devices(context.resources()))
    status = agent.wait()
    if elastic and status < 0:
        name = signal.Signals(-status).name
        raise RuntimeError(f"tfdist: the agent of task {number} was killed by {name}, and its rank with it")
    yield Ended(number, status, agent.said())


def devices(resources: Any) -> dict[str, str]:
    """The variable that shows a rank the GPUs that Spark has given to its task alone; none if it has not."""
    return {_VISIBLE: ",".join(resources["gpu"].addresses)} if "gpu" in resources else {}
