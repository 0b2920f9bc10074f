"""Tests of tfdist.system.rank.tf_config."""

from __future__ import annotations

import json

import pytest

from tfdist.errors import ConfigError
from tfdist.system.rank import job_place, tf_config

TWO = {"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}}
CHIEF = {"cluster": {"worker": ["b:2", "b:3"], "chief": ["a:1"]}, "task": {"type": "worker", "index": 1}}


def environment(given: object) -> dict[str, str]:
    return {tf_config.VARIABLE: given if isinstance(given, str) else json.dumps(given)}


@pytest.mark.parametrize(
    ("given", "rank", "addresses", "local"),
    [
        (TWO, 1, ("a:1", "b:2"), (0, 1)),
        (CHIEF, 2, ("a:1", "b:2", "b:3"), (1, 2)),
        (CHIEF | {"task": {"type": "chief", "index": 0}}, 0, ("a:1", "b:2", "b:3"), (0, 1)),
        (TWO | {"task": {"type": "worker", "index": "0"}}, 0, ("a:1", "b:2"), (0, 1)),
        ({"cluster": {"worker": {"0": "a:1", "1": "[::1]:2"}}, "task": TWO["task"]}, 1, ("a:1", "[::1]:2"), (0, 1)),
    ],
)
def test_task(given: object, rank: int, addresses: tuple[str, ...], local: tuple[int, int]) -> None:
    found = tf_config.find(environment(given))
    assert found is not None
    assert (found.rank, found.addresses, found.local) == (rank, addresses, local)
    assert job_place.transport(environment(given)) == job_place.SOCKETS
    assert job_place.of_job(environment(given)) == (rank, len(addresses))
    assert job_place.of_host(environment(given)) == local


@pytest.mark.parametrize(
    "given",
    [
        "",
        "{}",
        {"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}},
        TWO | {"task": {"type": "evaluator", "index": 0}},
        {"cluster": {}, "environment": "cloud"},
    ],
)
def test_process_that_is_alone(given: object) -> None:
    assert tf_config.find(environment(given)) is None
    assert job_place.transport(environment(given)) == ""


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("{", "cannot be parsed"),
        ("[1]", "cannot be parsed"),
        ({"cluster": {"worker": ["a", "b"]}}, "are not addresses"),
        (TWO | {"task": {"type": "worker", "index": 2}}, "no task 'worker' with the index 2"),
        (TWO | {"task": {"type": "worker", "index": -1}}, "no task 'worker' with the index -1"),
        (TWO | {"task": {}}, "no task ''"),
        ({"cluster": {"worker": ["a:1", "b:2"], "ps": ["c:3"]}, "task": TWO["task"]}, "parameter servers"),
    ],
)
def test_what_cannot_be_used(given: object, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        tf_config.find(environment(given))
    assert job_place.transport(environment(given)) == "", "asked at any time; init raises"


def test_our_own_launchers_come_first() -> None:
    assert job_place.transport({"OMPI_COMM_WORLD_SIZE": "2", **environment(TWO)}) == job_place.MPI
    torch = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert job_place.of_job({**torch, **environment(TWO)}) == (3, 4)
    assert job_place.of_host({**torch, **environment(TWO)}) == (1, 2)
    assert job_place.rank(torch) == "3"


def test_world_of_one_by_torchrun_is_none() -> None:
    assert job_place.transport({"RANK": "0", "WORLD_SIZE": "1"}) == ""
