"""Tests of tfdist.launch.run.force: names, and who may take part. The wait itself is in tests/launch."""

from __future__ import annotations

from typing import Any

import pytest

import tfdist
from tfdist.errors import ConfigError
from tfdist.launch.host.host import Host
from tfdist.launch.run import force
from tfdist.launch.run.force import Force
from tfdist.launch.wire.muster import Recruit


def _recruit(host: str = "a", address: str = "10.0.0.1", slots: int = 2, version: str = tfdist.__version__) -> Recruit:
    none: Any = None
    return Recruit(none, address, host, slots, version, "3.11")


def test_names_are_sorted_and_differ() -> None:
    found = force._named([_recruit("b"), _recruit("a", "10.0.0.2"), _recruit("a"), _recruit("a-2")], ["b"])
    assert [(name, each.address) for name, each in found.items()] == [
        ("a", "10.0.0.1"),
        ("a-2", "10.0.0.2"),
        ("a-2-2", "10.0.0.1"),
        ("b-2", "10.0.0.1"),
    ]
    none: Any = None
    made = Force(none, none, found)
    assert made.hosts[0] == Host("a", 2)
    assert made.addresses["a-2"] == "10.0.0.2"
    assert made.said() == []
    assert made.machines == {name: name for name in found}
    found["b-2"].machine = "m"
    assert made.machines["b-2"] == "m"


def test_hosts_are_in_the_order_of_their_numbers() -> None:
    found = force._named([_recruit(f"pod{number}-a") for number in (10, 9, 1)] + [_recruit("pod")], [])
    assert list(found) == ["pod", "pod1-a", "pod9-a", "pod10-a"]


@pytest.mark.parametrize("recruit", [_recruit("a b"), _recruit("x" * 65), _recruit(slots=0), _recruit(slots=10**6)])
def test_no_host(recruit: Recruit) -> None:
    assert "is not a host" in force.judged(recruit, lambda _: None)


def test_other_version() -> None:
    with pytest.raises(ConfigError, match=r"the agent on 'a' \(10.0.0.1\) has tfdist 9.9, the launcher has tfdist \d"):
        force.judged(_recruit(version="9.9"), lambda _: None)


def test_other_python_is_noted() -> None:
    said: list[str] = []
    recruit = _recruit()
    recruit.python = "2.7"
    assert force.judged(recruit, said.append) == ""
    assert said[0].startswith("note: the agent on a runs Python 2.7, the launcher Python 3.")
