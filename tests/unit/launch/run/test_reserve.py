"""Tests of tfdist.launch.run.reserve: names, and who is there. That agents come is in tests/launch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import tfdist
from tfdist.launch.host.host import Host
from tfdist.launch.run.force import Force
from tfdist.launch.run.reserve import Reserve
from tfdist.launch.wire.muster import Recruit
from tfdist.launch.wire.tls import Identity


def recruit(host: str, address: str = "10.0.0.1", slots: int = 2) -> Recruit:
    none: Any = None
    return Recruit(none, address, host, slots, tfdist.__version__, "3.11")


class Parts:
    """A reserve of a job that has the agents of a and b, and what is there of them."""

    def __init__(self) -> None:
        none: Any = None
        self.there = {"a", "b"}
        self.said: list[str] = []
        first = {"a": recruit("a"), "b": recruit("b", "10.0.0.2", 1)}
        self.reserve = Reserve(Force(none, Identity(), first), bytes(32), self.said.append, ["launcher"])
        self.reserve.follow(lambda name: name in self.there)

    def come(self, *hosts: str) -> None:
        for number, host in enumerate(hosts):
            self.reserve._admit(recruit(host, f"10.0.1.{number}"))

    @property
    def hosts(self) -> list[Host]:
        return list(self.reserve.hosts())


@pytest.fixture
def parts() -> Iterator[Parts]:
    made = Parts()
    yield made
    made.reserve._lobby.close()


def test_a_host_is_there_as_long_as_its_agent(parts: Parts) -> None:
    assert parts.hosts == [Host("a", 2), Host("b", 1)]
    parts.there.remove("a")
    assert parts.hosts == [Host("b", 1)]
    parts.reserve.withdraw("b")
    assert parts.hosts == []


def test_a_name_is_free_again_once_its_agent_is_gone(parts: Parts) -> None:
    parts.reserve.withdraw("b")  # it is still there
    parts.come("a", "b", "launcher", "c", "c")
    assert [each.name for each in parts.hosts] == ["a", "a-2", "b-2", "launcher-2", "c", "c-2"]
    parts.there.remove("a")
    parts.come("a")
    assert [each.name for each in parts.hosts][-1] == "a"
    assert parts.said[0] == "an agent has come from a-2 (10.0.1.0), which offers 2 slots"


def test_what_is_taken_is_of_the_job(parts: Parts) -> None:
    parts.come("c")
    addresses, force = parts.reserve.take(["a", "c", "launcher"])
    assert addresses == {"a": "10.0.0.1", "c": "10.0.1.0"}
    assert force is not None
    assert list(force.recruits) == ["c"]
    assert not force.owns_port  # whoever ends these agents leaves the job's port open
    assert Host("c", 2) not in parts.hosts  # nobody has said that it serves the job
    parts.there.add("c")
    assert Host("c", 2) in parts.hosts
    assert parts.reserve.take(["c"]) == ({"c": "10.0.1.0"}, None)


def test_another_version_is_told_so_and_costs_the_job_nothing(parts: Parts) -> None:
    other = recruit("d")
    other.version = "9.9"
    assert "has tfdist 9.9, the launcher has tfdist" in parts.reserve._judge(other)
    assert len(parts.said) == 1
