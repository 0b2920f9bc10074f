"""Reads the timeline of one rank, even if the process was killed while writing it."""

from __future__ import annotations

import bisect
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tfdist.errors import ConfigError

Event = dict[str, Any]


@dataclass(frozen=True)
class Trace:
    """The events of one rank's file, and the rank they belong to: the first that it had in the job.

    A process that joined a job was alone before, and then no rank of it (`was_alone`). A time in the file plus
    `to_unix_ns` is unix time by the clock of rank 0, accurate to half of `round_trip_ns`.
    """

    path: Path
    rank: int
    size: int
    host: str
    to_unix_ns: int
    round_trip_ns: int
    events: Sequence[Event]
    was_alone: bool = False

    def begin_ns(self, event: Event) -> int:
        """When it began, in unix time by the clock of rank 0."""
        return round(event["ts"] * 1000) + self.to_unix_ns

    @property
    def timed(self) -> list[Event]:
        """The events that have a time."""
        return [event for event in self.events if "ts" in event]

    @cached_property
    def first_ns(self) -> int:
        """When its first event began, in unix time by the clock of rank 0; 0 if there is none."""
        return min(map(self.begin_ns, self.timed), default=0)

    def of(self, category: str) -> list[Event]:
        """The events of a category: "call", "bucket", "phase", "device", "cycle" or "remark"."""
        return [event for event in self.events if event.get("cat") == category]

    @cached_property
    def numbers(self) -> list[tuple[int, int | None]]:
        """Which rank the process had from when on: (unix time in ns, rank), starting with what it was at first."""
        later = [(self.begin_ns(event), int(event["args"]["rank"])) for event in counted_anew(self.events)]
        return [(0, None if self.was_alone else self.rank), *later]

    def rank_at(self, unix_ns: int) -> int | None:
        """Which rank of the job the process had at that time; None: it had not joined it."""
        return self.numbers[bisect.bisect_right(self.numbers, unix_ns, key=lambda number: number[0]) - 1][1]


def counted_anew(events: Sequence[Event]) -> list[Event]:
    """Where the process went on as another rank, or as one of another number."""
    remarks = [event for event in events if event.get("cat") == "remark"]
    return [event for event in remarks if event["name"] == "ranks counted anew"]


def read(path: Path) -> Trace:
    """The timeline in a file.

    Raises:
        ConfigError: If it cannot be read, or is not the timeline of one rank.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    events = _events(text)
    sources = [event.get("args") for event in events if event.get("name") == "tfdist" and event.get("ph") == "M"]
    if len(sources) != 1:
        problem = "it is a merged file" if len(sources) > 1 else "tfdist did not write it"
        raise ConfigError(f"{path} is not the timeline of a rank: {problem}. Pass the files that the ranks wrote.")
    source: Any = sources[0]
    try:
        rank, size = int(source["rank"]), int(source["size"])
        # A job that began with one rank has it as rank 0 later too.
        joined = [int(event["args"]["rank"]) for event in counted_anew(events)[:1] if size == 1]
        was_alone = any(found != rank for found in joined)
        return Trace(
            path,
            rank=joined[0] if was_alone else rank,
            size=size,
            was_alone=was_alone,
            host=str(source["host"]),
            to_unix_ns=int(source["to_unix_ns"]),
            round_trip_ns=int(source["round_trip_ns"]),
            events=events,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{path} is damaged, or from another release: its event tfdist has {source!r}, expected rank, size, host "
            "and clock of a rank. Pass the file as the rank wrote it."
        ) from error


def read_all(paths: Sequence[Path]) -> list[Trace]:
    """The timelines in files, by rank; several files of one rank in order of their start.

    Raises:
        ConfigError: As `read`, or if a file is given twice.
    """
    twice = {path for path in paths if sum(path.absolute() == other.absolute() for other in paths) > 1}
    if twice:
        raise ConfigError(f"{min(twice)} is given twice; give each file once.")
    return sorted(map(read, paths), key=lambda trace: (trace.rank, trace.first_ns))


def _events(text: str) -> list[Event]:
    """The readable events: in a file that was cut off within an event, all those before it, one per line."""
    try:
        found = json.loads(text)
    except ValueError:
        found = []
        for line in text.split("\n"):
            try:
                found.append(json.loads(line.strip().rstrip(",")))
            except ValueError:
                continue
    if isinstance(found, dict):
        found = found.get("traceEvents")
    return [event for event in found if isinstance(event, dict)] if isinstance(found, list) else []
