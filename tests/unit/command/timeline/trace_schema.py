"""The Chrome trace event format, as far as it says what an event must have: what a viewer relies on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Event = dict[str, Any]
_NUMBER = (int, float)
# By the kind of event ("ph"): what it has beside "name", "pid" and "tid".
_FIELDS: dict[str, dict[str, Any]] = {
    "X": {"cat": str, "ts": _NUMBER, "dur": _NUMBER, "args": dict},
    "i": {"cat": str, "ts": _NUMBER, "s": str, "args": dict},
    "b": {"cat": str, "ts": _NUMBER, "id2": dict, "args": dict},
    "e": {"cat": str, "ts": _NUMBER, "id2": dict},
    "M": {"args": dict},
}
_SCOPES = ("g", "p", "t")


def problems(events: Iterable[Any]) -> list[str]:
    """What is wrong, an entry a problem."""
    return [f"{problem}: {event}" for event in events for problem in _problems(event)]


def _problems(event: Any) -> Iterable[str]:
    if not isinstance(event, dict) or event.get("ph") not in _FIELDS:
        yield "no event of a known kind"
        return
    fields = {"name": str, "ph": str, "pid": int, "tid": int, **_FIELDS[event["ph"]]}
    for name, kind in fields.items():
        if not isinstance(event.get(name), kind):
            yield f"{name} is {event.get(name)!r}"
    yield from (f"{name} is unexpected" for name in event.keys() - fields.keys())
    if any(isinstance(event.get(name), _NUMBER) and event[name] < 0 for name in ("ts", "dur")):
        yield "a time is negative"
    if event["ph"] == "i" and event.get("s") not in _SCOPES:
        yield "the scope is none"


def nested(inner: Iterable[Event], outer: Iterable[Event]) -> bool:
    """Whether each of `inner` lies within one of `outer` on the same thread."""
    spans = [(event["pid"], event["tid"], event["ts"], _end(event)) for event in outer]
    return all(
        any((e["pid"], e["tid"]) == (p, t) and b - 1e-3 <= e["ts"] and _end(e) <= c + 1e-3 for p, t, b, c in spans)
        for e in inner
    )


def _end(event: Event) -> float:
    return float(event["ts"] + event.get("dur", 0))
