"""Merges the timelines of all ranks into one, by the clock of rank 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfdist.command.timeline.trace_file import Event, Trace


def merge(traces: Sequence[Trace]) -> dict[str, Any]:
    """A trace in the JSON object form, in which each file is a process.

    Times are microseconds since the very first event. Each process is numbered by its rank; if ranks were restarted, so
    that one rank has several files, the later ones get numbers after all ranks.

    Args:
        traces: At least one.
    """
    origin = min((trace.first_ns for trace in traces if trace.timed), default=0)
    numbers = _numbers(traces)
    events = [
        _moved(event, trace, number, origin)
        for trace, number in zip(traces, numbers, strict=True)
        for event in trace.events
    ]
    clocks = {str(number): trace.round_trip_ns for trace, number in zip(traces, numbers, strict=True)}
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"unix_time_ns_at_0": origin, "clock_round_trip_ns": clocks},
    }


def _numbers(traces: Sequence[Trace]) -> list[int]:
    """A distinct number for each trace."""
    free = max(trace.rank for trace in traces) + 1
    taken: list[int] = []
    for trace in traces:
        number = trace.rank
        if number in taken:
            number, free = free, free + 1
        taken.append(number)
    return taken


def _moved(event: Event, trace: Trace, number: int, origin: int) -> Event:
    moved = {**event, "pid": number}
    if "ts" in event:
        moved["ts"] = (trace.begin_ns(event) - origin) / 1000
    if event["name"] == "process_name":
        name = f"rank {trace.rank} (host {trace.host})"
        moved["args"] = {"name": name if number == trace.rank else f"{name}, {trace.path.name}"}
    if event["name"] == "process_sort_index":
        moved["args"] = {"sort_index": number}
    return moved
