"""Renders a survey, the running passes, and advice as tables for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tfdist.data_service.inspection.advice import Advice
from tfdist.data_service.inspection.passes import Reading
from tfdist.data_service.inspection.survey import Server, Survey
from tfdist.data_service.inspection.wait_report import TrainerWait
from tfdist.system.terminal.text_table import aligned

_HEAD = (
    "role",
    "address",
    "state",
    "since",
    "tasks",
    "elements/s",
    "MB/s",
    "full queues",
    "CPU",
    "tags",
    "details",
)
_HEAD_OF_PASSES = ("pass", "job", "repetition", "dataset", "sharding", "tasks", "workers")
# What has a column of its own; totals are for --json and Prometheus.
_SHOWN = frozenset({"tasks", "elements_per_second", "bytes_per_second", "full_queues", "cpu_cores", "cores"})
_MOST_WORKERS = 4
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86400


def render(found: Survey, now: float) -> str:
    """One line per server, the dispatcher first; then one line per trainer that has reported how long it waits.

    Args:
        found: The survey to show.
        now: Unix time, to compute uptimes.
    """
    rows = [_HEAD, _row("dispatcher", found.dispatcher, now)]
    rows += [_row("worker", worker, now) for worker in found.workers]
    told = found.dispatcher.status
    if told is None or not told.trainers:
        return aligned(rows)
    return aligned(rows) + "\n\n" + trainers(told.trainers)


def trainers(waits: Sequence[TrainerWait]) -> str:
    """One line per trainer: the share of recent time that it waited, where it was measured, and when."""
    rows = [("trainer", "waits", "measured at the", "told")]
    return aligned(
        rows + [(wait.trainer, f"{wait.share:.1%}", wait.measured_at, f"{duration(wait.age_s)} ago") for wait in waits]
    )


def advice(found: Advice) -> str:
    """The waiting trainers, the loads of the workers, and the advice."""
    parts = [trainers(found.trainers)] if found.trainers else []
    loads = [(load.worker, load.state, "-" if load.busy is None else f"{load.busy:.1%}") for load in found.loads]
    parts.append(aligned([("worker", "state", "busy"), *loads]))
    return "\n\n".join([*parts, "\n".join(found.text)])


def render_passes(reading: Reading) -> str:
    """One line per pass over a dataset, and one for each worker that did not report its tasks."""
    rows = [_HEAD_OF_PASSES]
    for one in reading.passes:
        names = [name if number == 1 else f"{name} ({number})" for name, number in sorted(one.tasks.items())]
        more = len(names) - _MOST_WORKERS
        shown = ", ".join(names[:_MOST_WORKERS]) + (f" and {more} more" if more > 0 else "")
        job = (one.job, f"{one.repetition}") if one.job else ("-", "-")
        total = f"{sum(one.tasks.values())}"
        rows.append((f"{one.number}", *job, one.dataset or "-", one.sharding or "-", total, shown))
    text = aligned(rows) if reading.passes else "no dataset is being read"
    return "\n".join([text, *(f"{worker} did not report its tasks: {why}" for worker, why in reading.silent.items())])


def _row(role: str, server: Server, now: float) -> tuple[str, ...]:
    told = server.status
    if told is None:
        return (role, server.address, server.state, *["-"] * (len(_HEAD) - 4), server.detail)
    counters = told.counters
    measured = (
        _shown(counters, "tasks", "{:g}"),
        _shown(counters, "elements_per_second", "{:,.0f}"),
        _shown(counters, "bytes_per_second", "{:,.1f}", 1e-6),
        _shown(counters, "full_queues", "{:.1f}"),
        _shown(counters, "cpu_cores", "{:.1f}") + _shown(counters, "cores", " of {:g}", absent=""),
    )
    others = [f"{name} {value:g}" for name, value in sorted(counters.items()) if not _has_place(name)]
    text = ", ".join([f"tfdist {told.tfdist}", f"TensorFlow {told.tensorflow}", *others])
    since = duration(now - told.started)
    return (role, server.address, server.state, since, *measured, ",".join(told.tags) or "-", text)


def _has_place(name: str) -> bool:
    return name in _SHOWN or name.endswith("_total")


def _shown(counters: Mapping[str, float], name: str, form: str, scale: float = 1, absent: str = "-") -> str:
    return form.format(counters[name] * scale) if name in counters else absent


def duration(seconds: float) -> str:
    """A duration in its two largest units."""
    whole = max(0, int(seconds))
    if whole < _MINUTE_S:
        return f"{whole} s"
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S} min {whole % _MINUTE_S} s"
    if whole < _DAY_S:
        return f"{whole // _HOUR_S} h {whole % _HOUR_S // _MINUTE_S} min"
    return f"{whole // _DAY_S} d {whole % _DAY_S // _HOUR_S} h"
