"""Files as ranks write them, of events that a test chooses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Event = dict[str, Any]


def source(rank: int, to_unix_ns: int = 0, round_trip_ns: int = 0, size: int = 2) -> list[Event]:
    place = {"pid": rank, "tid": 0}
    told = {"rank": rank, "size": size, "host": "a", "to_unix_ns": to_unix_ns, "round_trip_ns": round_trip_ns}
    return [
        {"name": "process_name", "ph": "M", **place, "args": {"name": f"rank {rank} (host a)"}},
        {"name": "process_sort_index", "ph": "M", **place, "args": {"sort_index": rank}},
        {"name": "tfdist", "ph": "M", **place, "args": told},
    ]


def span(category: str, name: str, begin: float, end: float, rank: int = 0, tid: int = 0, **arguments: Any) -> Event:
    """An event from one microsecond to another."""
    place = {"ph": "X", "pid": rank, "tid": tid, "ts": begin, "dur": end - begin}
    return {"name": name, "cat": category, **place, "args": arguments}


def remark(name: str, at: float, **arguments: Any) -> Event:
    return {"name": name, "cat": "remark", "ph": "i", "pid": 0, "tid": 0, "ts": at, "s": "p", "args": arguments}


def on_gpu(number: int, begin: float, end: float, waited: float) -> list[Event]:
    event = {"name": "allreduce g", "cat": "device", "pid": 0, "tid": 1, "id2": {"local": str(number)}}
    return [{**event, "ph": "b", "ts": begin, "args": {"waited_us": waited}}, {**event, "ph": "e", "ts": end}]


def text_of(events: list[Event]) -> str:
    return "[\n" + ",\n".join(json.dumps(event) for event in events) + "\n]\n"


def write(path: Path, events: list[Event]) -> Path:
    path.write_text(text_of(events))
    return path
