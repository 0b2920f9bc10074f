"""The status of a server in Prometheus' text format. Measures nothing and uses no socket."""

from __future__ import annotations

from tfdist.data_service.inspection.status import READY, Status
from tfdist.data_service.inspection.wait_report import TrainerWait
from tfdist.system.network import prometheus
from tfdist.system.network.prometheus import Family

_PREFIX = "tfdist_data_service_"
# What a scraper shows beside the name. A counter that is not here has none.
HELP = {
    "info": "What the server is; always 1.",
    "ready": "Whether the server accepts work, 1 or 0.",
    "start_time_seconds": "Unix time of the start of the server.",
    "workers": "Workers that have ever registered with the dispatcher.",
    "datasets": "Datasets that have ever been registered with the dispatcher.",
    "journal_bytes": "Size of the dispatcher's journal in bytes.",
    "tasks": "Running tasks of the worker, one per pass over a dataset.",
    "elements_total": "Elements that the worker has produced.",
    "bytes_total": "Bytes of the elements that the worker has produced, before compression.",
    "busy_seconds_total": "Time the worker spent producing elements, summed over its tasks.",
    "splits_total": "Splits of the data that the worker has taken from the dispatcher.",
    "elements_per_second": "Elements that the worker produces per second, over the last ten seconds.",
    "bytes_per_second": "Bytes that the worker produces per second, over the last ten seconds.",
    "full_queues": "Tasks that wait for trainers because their queue of elements is full, over the last ten seconds.",
    "cpu_seconds_total": "CPU time of the server's process.",
    "cpu_cores": "CPU time per second of the server's process, over the last ten seconds.",
    "cores": "Processor cores that the server's process may use.",
    "trainer_wait_ratio": "Share of recent time, 0 to 1, that a trainer waited for data.",
}


def render(status: Status) -> str:
    """The metrics of a server: its role, readiness, start time, counters, and how long trainers wait.

    Raises:
        ValueError: If a counter has a name that Prometheus would reject.
    """
    labels = {"role": status.role, "address": status.address}
    versions = {"tfdist": status.tfdist, "tensorflow": status.tensorflow, "python": status.python}
    families = [
        _family("info", (labels | versions, 1)),
        _family("ready", (labels | {"state": status.state}, int(status.state == READY))),
        _family("start_time_seconds", (labels, status.started)),
        *(_family(name, (labels, value)) for name, value in sorted(status.counters.items())),
    ]
    if status.trainers:
        waits = [(labels | _origin(wait), wait.share) for wait in status.trainers]
        families.append(_family("trainer_wait_ratio", *waits))
    return prometheus.render(families)


def _origin(wait: TrainerWait) -> dict[str, str]:
    return {"trainer": wait.trainer, "measured_at": wait.measured_at}


def _family(name: str, *samples: tuple[dict[str, str], float]) -> Family:
    return Family(_PREFIX, name, HELP.get(name, ""), samples)
