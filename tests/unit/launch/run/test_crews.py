"""Tests of tfdist.launch.run.crews: which of them run."""

from __future__ import annotations

import queue
from typing import Any

from tfdist.launch.host.core import Cores
from tfdist.launch.host.host import Host
from tfdist.launch.run.crews import Crews
from tfdist.launch.run.plan import Plan
from tfdist.launch.start.direct import Direct
from tfdist.launch.start.mpirun import Mpirun
from tfdist.launch.wire.ticket import Ticket

CORES = Cores(2, bindable=True)


class _Force:
    recruits: Any = {}  # noqa: RUF012
    machines: Any = {"a": "m1", "b": "m1"}  # noqa: RUF012


def _crews(*hosts: str, served: tuple[str, ...] = ()) -> Crews:
    places = tuple(Host(name, 1) for name in hosts)
    starter = Direct("p", places, local=not served, cores=CORES, served=frozenset(served))
    force: Any = _Force() if served else None
    return Crews(Plan(starter, ("x",), {}, 30.0, force=force), queue.SimpleQueue())


def test_whoever_starts_all_is_one_crew() -> None:
    made = Crews(Plan(Mpirun("m", (Host("a", 2),), False, CORES), ("x",), {}, 30.0), queue.SimpleQueue())
    made.start(Ticket.issue("h", 1), {})
    assert made.here
    assert not made.end("")
    made.close(0, "")


def test_job_ends_with_the_last_crew() -> None:
    made = _crews("a", "here", "b", served=("a", "b"))
    assert made.here
    assert [made.end(name) for name in ("a", "a", "", "b")] == [True, True, True, False]


def test_no_rank_here() -> None:
    made = _crews("a", "b", served=("a", "b"))
    assert not made.here
    assert [made.end(name) for name in ("b", "a")] == [True, False]


def test_hosts_of_one_machine() -> None:
    made = _crews("a", "here", "b", served=("a", "b"))
    assert [made.machine_of(name) for name in ("a", "here", "b")] == ["m1", "here", "m1"]
