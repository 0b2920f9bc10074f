"""Computes where the time of a job went, rank by rank, from the timelines of its ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tfdist.command.timeline.trace_file import Event, Trace
from tfdist.system.terminal.text_table import aligned

PHASES = ("wait", "pack", "reduce", "unpack")


@dataclass(frozen=True)
class Share:
    """One rank's part. Times are seconds.

    `other` is time inside collectives that belongs to no phase, `outside` is time outside of them, such as computation.
    `failed` names the calls that failed. `waited_for` is how long other ranks waited because this one was the last.
    `overlap` is the fraction of the GPU reductions' time during which nothing waited for them; None if there were none.
    """

    rank: int
    file: str
    wall: float
    calls: int
    bytes: int
    wait: float
    pack: float
    reduce: float
    unpack: float
    other: float
    outside: float
    waited_for: float
    overlap: float | None
    lost_records: int
    failed: tuple[str, ...]

    @property
    def communication(self) -> float:
        """The fraction of the wall time spent inside collectives, 0 to 1."""
        return 1 - self.outside / self.wall if self.wall else 0.0


def summarize(traces: Sequence[Trace]) -> list[Share]:
    """The share of each file, in order."""
    waited_for = _waited_for(traces)
    return [_share(trace, waited) for trace, waited in zip(traces, waited_for, strict=True)]


def slowest(shares: Sequence[Share]) -> Share | None:
    """The rank that others waited for longest; None if nobody waited."""
    most = max(shares, key=lambda share: share.waited_for)
    return most if most.waited_for > 0 else None


def document(shares: Sequence[Share]) -> dict[str, Any]:
    """The summary as a JSON document."""
    most = slowest(shares)
    return {
        "slowest_rank": None if most is None else most.rank,
        "ranks": [{**asdict(share), "communication": share.communication} for share in shares],
    }


def table(shares: Sequence[Share]) -> str:
    """The summary as text: one row per rank, and a line about the straggler."""
    head = ("rank", "wall s", "calls", "MB", *(f"{name} s" for name in PHASES), "other s", "of wall", "overlap")
    rows = [head, *map(_row, shares)]
    lines = [aligned([(*row, ending) for row, ending in zip(rows, _waits(shares), strict=True)])]
    most = slowest(shares)
    if most is not None:
        lines.append(f"The other ranks waited longest for rank {most.rank}: {most.waited_for:.3f} s in total.")
    else:
        lines.append("No rank waited for another.")
    lines += [f"Calls that failed on rank {share.rank}: {_counted(share.failed)}." for share in shares if share.failed]
    lost = sum(share.lost_records for share in shares)
    if lost:
        lines.append(f"{lost} calls and buckets are missing: they were recorded faster than they could be written.")
    return "\n".join(lines)


def _counted(names: Sequence[str]) -> str:
    """As in "barrier x, 12 of allreduce g"."""
    counts = Counter(names)
    return ", ".join(name if count == 1 else f"{count} of {name}" for name, count in counts.items())


def _waits(shares: Sequence[Share]) -> list[str]:
    return ["waited for s", *(f"{share.waited_for:.3f}" for share in shares)]


def _row(share: Share) -> tuple[str, ...]:
    phases = (f"{getattr(share, name):.3f}" for name in PHASES)
    overlap = "–" if share.overlap is None else f"{share.overlap:.0%}"
    sums = (f"{share.wall:.3f}", str(share.calls), f"{share.bytes / 1e6:.1f}")
    return (str(share.rank), *sums, *phases, f"{share.other:.3f}", f"{share.communication:.0%}", overlap)


def _share(trace: Trace, waited_for: float) -> Share:
    calls, phases = trace.of("call"), trace.of("phase")
    inside = covered((event["ts"], event["ts"] + event["dur"]) for event in calls)
    timed = trace.timed
    begin = min((event["ts"] for event in timed), default=0.0)
    end = max((event["ts"] + event.get("dur", 0.0) for event in timed), default=0.0)
    seconds = {name: sum(event["dur"] for event in phases if event["name"] == name) / 1e6 for name in PHASES}
    inside_all_threads = sum(event["dur"] for event in calls) / 1e6
    return Share(
        rank=trace.rank,
        file=trace.path.name,
        wall=(end - begin) / 1e6,
        calls=len(calls),
        bytes=sum(event["args"].get("bytes", 0) for event in calls),
        **seconds,
        other=max(0.0, inside_all_threads - sum(seconds.values())),
        outside=(end - begin - inside) / 1e6,
        waited_for=waited_for,
        overlap=_overlap(trace.of("device")),
        lost_records=sum(event["args"]["records"] for event in trace.of("remark") if event["name"] == "events lost"),
        failed=tuple(event["name"] for event in calls if event["args"].get("failed")),
    )


def covered(intervals: Iterable[tuple[float, float]]) -> float:
    """The total length that intervals cover; overlaps count once."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def _overlap(device: Sequence[Event]) -> float | None:
    begun: dict[tuple[Any, ...], Event] = {}  # calls are counted anew where the ranks are
    pairs = []
    for event in device:
        if event["ph"] == "b":
            begun[_key(event)] = event
        elif event["ph"] == "e" and _key(event) in begun:
            pairs.append((begun.pop(_key(event)), event))
    under_way = sum(end["ts"] - begin["ts"] for begin, end in pairs)
    if under_way <= 0:
        return None
    return 1 - sum(begin["args"]["waited_us"] for begin, _ in pairs) / under_way


def _key(event: Event) -> tuple[Any, ...]:
    return (event["tid"], event["id2"]["local"])


def _waited_for(traces: Sequence[Trace]) -> list[float]:
    """For each file, the seconds that others waited for its process."""
    sums = [0.0] * len(traces)
    for trace in traces:
        for event in trace.of("phase"):
            if event["name"] == "wait" and "last_rank" in event["args"]:
                found = _process(traces, trace.begin_ns(event), event["args"]["last_rank"])
                if found is not None:
                    sums[found] += event["dur"] / 1e6
    return sums


def _process(traces: Sequence[Trace], unix_ns: int, rank: int) -> int | None:
    """The file of `rank` at a given time: ranks are renumbered when one is lost, and may be restarted."""
    fitting = [index for index, trace in enumerate(traces) if trace.rank_at(unix_ns) == rank]
    begun = [index for index in fitting if traces[index].first_ns <= unix_ns]
    if begun:
        return max(begun, key=lambda index: traces[index].first_ns)
    return fitting[0] if fitting else None
