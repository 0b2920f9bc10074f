"""The status that a data service server reports, and its JSON. `survey` fetches it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from tfdist.data_service.inspection import wait_report
from tfdist.data_service.inspection.wait_report import TrainerWait

SCHEMA = 1
DISPATCHER, WORKER = "dispatcher", "worker"
STARTING, READY, DRAINING, DRAINED = "starting", "ready", "draining", "drained"
_STATES = (STARTING, READY, DRAINING, DRAINED)
_CHECKS: dict[str, Any] = {
    "role": str,
    "address": str,
    "control_port": int,
    "tfdist": str,
    "tensorflow": str,
    "python": str,
    "pid": int,
    "started": (int, float),
    "state": str,
    "work_dir_token": (str, type(None)),
    "tags": list,
    "counters": dict,
    "leaving": dict,
    "trainers": list,
}


@dataclass(frozen=True)
class Status:
    """One answer to `GET /status`.

    Attributes:
        role: "dispatcher" or "worker".
        address: "HOST:PORT" of tf.data's gRPC.
        control_port: Port of health, metrics and status.
        tfdist: Version of tfdist.
        tensorflow: Version of TensorFlow.
        python: Version of Python.
        pid: Process id on its machine.
        started: Unix time of its start, in seconds.
        state: "starting", "ready" or "draining".
        work_dir_token: A token that proves that two processes see the same work_dir; None without one.
        tags: Labels set by the operator.
        counters: Name to number; those ending in "_total" only grow.
        leaving: Of a dispatcher: the workers that have drained, with the Unix start time of each in seconds.
        trainers: Of a dispatcher: the reading trainers, and the share of time that each waits for data.
        jobs: Of a dispatcher with a journal: for each pass number the name of its job and its number in that job,
            starting at 1.
        ended: Of a dispatcher with a journal: which of these passes have been read to the end.
        fixed_workers: Of a dispatcher: whether it was given its workers in advance, so that each can have a fixed
            shard.
    """

    role: str
    address: str
    control_port: int
    tfdist: str
    tensorflow: str
    python: str
    pid: int
    started: float
    state: str
    work_dir_token: str | None = None
    tags: tuple[str, ...] = ()
    counters: Mapping[str, float] = field(default_factory=dict)
    leaving: Mapping[str, float] = field(default_factory=dict)
    trainers: tuple[TrainerWait, ...] = ()
    jobs: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    ended: tuple[int, ...] = ()
    fixed_workers: bool = False

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON, with the schema number."""
        return {"schema": SCHEMA, **asdict(self)}


def parse(text: bytes) -> Status:
    """Parses an answer.

    Raises:
        ValueError: If it is invalid; says what is wrong.
    """
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("not an object")
    if found.get("schema") != SCHEMA:
        raise ValueError(f"schema {found.get('schema')!r}; expected {SCHEMA}")
    for name, kind in _CHECKS.items():
        if name not in found or not isinstance(found[name], kind) or isinstance(found[name], bool):
            raise ValueError(f"{name} is {found.get(name)!r}")
    if found["role"] not in (DISPATCHER, WORKER) or found["state"] not in _STATES:
        raise ValueError(f"role {found['role']!r}, state {found['state']!r}")
    _check_items(found, "tags", found["tags"], str)
    found["tags"] = tuple(found["tags"])
    for name in ("counters", "leaving"):
        _check_items(found, name, found[name].values(), (int, float))
    found["trainers"] = tuple(_trainer(item) for item in found["trainers"])
    found["jobs"] = _jobs(found.get("jobs", {}))  # a server of another version is known by it, and may have none
    found["ended"] = _numbers(found.get("ended", []))
    if not isinstance(found.setdefault("fixed_workers", False), bool):
        raise ValueError(f"fixed_workers is {found['fixed_workers']!r}")
    return Status(**{item.name: found[item.name] for item in fields(Status)})


def _check_items(found: dict[str, Any], name: str, items: Iterable[Any], kind: Any) -> None:
    if not all(isinstance(item, kind) for item in items):
        raise ValueError(f"{name} is {found[name]!r}")


def _trainer(item: Any) -> TrainerWait:
    try:
        return wait_report.check(item, item.get("age_s") if isinstance(item, dict) else None)
    except ValueError as error:
        raise ValueError(f"trainers has {item!r}: {error}") from None


def _numbers(told: Any) -> tuple[int, ...]:
    if not isinstance(told, list) or not all(type(number) is int for number in told):
        raise ValueError(f"ended is {told!r}")
    return tuple(told)


def _jobs(told: Any) -> dict[str, tuple[str, int]]:
    if not isinstance(told, dict):
        raise ValueError(f"jobs is {told!r}")
    for job in told.values():
        if not isinstance(job, list) or [type(item) for item in job] != [str, int]:
            raise ValueError(f"jobs has {job!r}")
    return {number: (name, repetition) for number, (name, repetition) in told.items()}
