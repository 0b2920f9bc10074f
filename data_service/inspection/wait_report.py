"""A trainer's report to its dispatcher of the time it waits for data: the JSON body of `POST /wait`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

PATH = "/wait"
LARGEST_BODY_BYTES = 512
_LONGEST_S = 1e9
# How often a reading trainer reports, and after how long without a report it counts as no longer reading.
PERIOD_S = 5.0
LATE_S = 2 * PERIOD_S
# Where a wait was measured: at the end of the input (`measure_wait`), or where elements leave `distribute`. There a
# thread of a `prefetch` behind may wait while the model computes, so that the share is an upper bound.
INPUT, SERVICE = "input", "service"
# It stands in tables, metrics and lines of logs: no blank, no quote, no control character.
_NAME = re.compile(r"[A-Za-z0-9._:\[\]-]{1,128}")


@dataclass(frozen=True)
class TrainerWait:
    """The latest report of one trainer.

    Attributes:
        trainer: Its name: host, process id and a random number.
        share: The share of recent time that it waited for data, 0 to 1.
        measured_at: "input" or "service".
        age_s: Seconds since the report.
    """

    trainer: str
    share: float
    measured_at: str
    age_s: float = 0.0


def compose(wait: TrainerWait) -> bytes:
    """The body of a report."""
    fields = {"trainer": wait.trainer, "share": wait.share, "measured_at": wait.measured_at}
    return json.dumps(fields).encode()


def parse(body: bytes) -> TrainerWait:
    """Reads a report.

    Raises:
        ValueError: If it is none; says what is wrong.
    """
    try:
        found = json.loads(body)
    except RecursionError:
        raise ValueError("nested too deep") from None
    return check(found, 0.0)


def check(found: Any, age_s: Any) -> TrainerWait:
    """Validates one report from parsed JSON.

    Raises:
        ValueError: If it is none; says what is wrong.
    """
    if not isinstance(found, dict):
        raise ValueError("not an object")
    trainer, share, place = found.get("trainer"), found.get("share"), found.get("measured_at")
    if not isinstance(trainer, str) or not _NAME.fullmatch(trainer):
        raise ValueError(f"trainer is {trainer!r}; expected 1 to 128 of the characters A-Z a-z 0-9 . _ : [ ] -")
    if place not in (INPUT, SERVICE):
        raise ValueError(f"measured_at is {place!r}; expected {INPUT} or {SERVICE}")
    return TrainerWait(trainer, _number("share", share, 1), place, _number("age_s", age_s, _LONGEST_S))


def _number(name: str, value: Any, largest: float) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= largest:
        return float(value)
    raise ValueError(f"{name} is {value!r}; expected a number from 0 to {largest:g}")
