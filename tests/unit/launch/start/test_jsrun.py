"""Tests of tfdist.launch.start.jsrun."""

from __future__ import annotations

import dataclasses

import pytest

from tfdist.errors import ConfigError
from tfdist.launch.host.core import Cores
from tfdist.launch.host.host import Host
from tfdist.launch.start.jsrun import Jsrun

CALL = Jsrun("/l/jsrun", (Host("a", 6), Host("b", 6)), local=False, cores=Cores(1, bindable=True))


def test_words() -> None:
    assert CALL.command(["task"], {"TFDIST_RUN_KEY": "secret"}) == [
        *("/l/jsrun", "--nrs=2", "--rs_per_host=1", "--tasks_per_rs=6"),
        *("--cpu_per_rs=ALL_CPUS", "--gpu_per_rs=ALL_GPUS", "--bind=none", "task"),
    ]


def test_words_of_the_user() -> None:
    call = dataclasses.replace(CALL, binding=("--bind=packed:7",), extra=("--smpiargs=-gpu",))
    assert call.command(["task"], {})[-3:] == ["--bind=packed:7", "--smpiargs=-gpu", "task"]


def test_settings_are_those_of_mpi_without_mpirun() -> None:
    assert not [name for name in CALL.settings({}, root=False) if name.startswith("PRTE_")]


def test_unequal_numbers_of_ranks() -> None:
    with pytest.raises(ConfigError, match=r"--jsrun starts equally many .* received a:6, b:5; choose -np"):
        dataclasses.replace(CALL, hosts=(Host("a", 6), Host("b", 5)))


@pytest.mark.parametrize(
    ("slots", "kept"),
    [((1, 42, 42), (42, 42)), ((1, 1, 1), (1, 1, 1)), ((1,), (1,)), ((2, 4), (2, 4)), ((1, 4, 1), (1, 4, 1))],
)
def test_host_of_the_script_runs_no_rank(slots: tuple[int, ...], kept: tuple[int, ...]) -> None:
    hosts = tuple(Host(f"h{number}", count) for number, count in enumerate(slots))
    assert tuple(host.slots for host in Jsrun.hosts_for_ranks(hosts)) == kept
    assert set(Jsrun.hosts_for_ranks(hosts)) <= set(hosts)
