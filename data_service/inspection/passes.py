"""What is being read: the passes over datasets that the workers in a survey have tasks for. Changes nothing.

A pass is what tf.data calls an iteration: once through a dataset, by one trainer or by those that share a job name. The
workers report which passes their tasks belong to, the dispatcher what a pass reads, and its journal the names of jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfdist.data_service.inspection.address import ServiceAddress
from tfdist.data_service.inspection.dispatcher_client import DispatcherClient, TaskTold, WorkerClient
from tfdist.data_service.inspection.status import DRAINING, READY
from tfdist.data_service.inspection.survey import Survey, at_once
from tfdist.errors import ConfigError, PeerLostError


@dataclass(frozen=True)
class Pass:
    """One pass over a dataset.

    Attributes:
        number: Its number, starting near 1001; later passes have larger numbers.
        dataset: The id of the dataset; empty if the pass ended during the query.
        sharding: "off", "dynamic" and so on; empty in the same case.
        tasks: Number of its tasks on each worker, by the worker's address.
        job: The name of its job; empty if the dispatcher keeps no journal.
        repetition: Its number in that job.
    """

    number: int
    dataset: str
    sharding: str
    tasks: Mapping[str, int]
    job: str = ""
    repetition: int = 0


@dataclass(frozen=True)
class Reading:
    """What is being read at one moment.

    Attributes:
        passes: The passes, by number.
        silent: Workers that were ready but did not report their tasks, with the reason.
    """

    passes: tuple[Pass, ...]
    silent: Mapping[str, str]


def read(found: Survey, service: ServiceAddress, timeout_s: float) -> Reading:
    """Asks the workers in a survey for their tasks, and the dispatcher to describe them.

    Args:
        found: The survey; only workers that are ready or draining are asked.
        service: The dispatcher.
        timeout_s: Seconds for each answer.

    Raises:
        PeerLostError: If the dispatcher does not answer.
    """
    present = [worker.address for worker in found.workers if worker.state in (READY, DRAINING)]
    silent: dict[str, str] = {}

    def ask(worker: str) -> dict[int, int]:
        try:
            with WorkerClient(worker, timeout_s) as client:
                return client.tasks()
        except (ConfigError, PeerLostError) as error:
            silent[worker] = str(error)
            return {}

    tasks = dict(zip(present, at_once(ask, present), strict=True))
    with DispatcherClient(service.grpc, timeout_s) as client:
        told = _describe(client, tasks)
    jobs = found.dispatcher.status.jobs if found.dispatcher.status is not None else {}
    return Reading(gather(tasks, told, jobs), silent)


def _describe(client: DispatcherClient, tasks: Mapping[str, Mapping[int, int]]) -> dict[int, TaskTold]:
    """Describes each pass; no pass is queried twice."""
    told: dict[int, TaskTold] = {}
    for worker, own in tasks.items():
        if all(number in told for number in own.values()):
            continue
        asked = {number: task for task, number in own.items() if number not in told}
        known = set(own) - set(asked.values())
        told |= {task.pass_number: task for task in client.describe(worker, sorted(known))}
    return told


def gather(
    tasks: Mapping[str, Mapping[int, int]], told: Mapping[int, TaskTold], jobs: Mapping[str, tuple[str, int]]
) -> tuple[Pass, ...]:
    """Groups tasks into passes.

    Args:
        tasks: For each worker the pass of each of its tasks, by the task's id.
        told: The descriptions of the passes, by number.
        jobs: As in a dispatcher's status.
    """
    counts: dict[int, dict[str, int]] = {}
    for worker, own in tasks.items():
        for number in own.values():
            workers = counts.setdefault(number, {})
            workers[worker] = workers.get(worker, 0) + 1
    passes = []
    for number, workers in sorted(counts.items()):
        known = told.get(number, TaskTold(number, "", ""))
        passes.append(Pass(number, known.dataset, known.sharding, workers, *jobs.get(str(number), ("", 0))))
    return tuple(passes)


def describe(reading: Reading) -> dict[str, Any]:
    """The reading as JSON."""
    passes = [
        {
            "pass": one.number,
            "job": one.job,
            "repetition": one.repetition,
            "dataset": one.dataset,
            "sharding": one.sharding,
            "tasks": dict(one.tasks),
        }
        for one in reading.passes
    ]
    return {"passes": passes, "silent": dict(reading.silent)}
