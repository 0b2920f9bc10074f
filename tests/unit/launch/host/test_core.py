"""Tests of tfdist.launch.host.core."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tfdist.launch.host import core
from tfdist.launch.host.core import Cores


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four cores of two hardware threads."""
    for cpu in range(8):
        folder = tmp_path / f"devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    (tmp_path / "fs/cgroup").mkdir(parents=True)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    return tmp_path


def test_hardware_threads_are_no_cores(machine: Path) -> None:
    assert core.available(machine) == Cores(4, bindable=True)


def test_affinity(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 4})
    assert core.available(machine) == Cores(2, bindable=False)


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        ("max 100000", Cores(4, True)),
        ("150000 100000", Cores(2, False)),
        ("1 100", Cores(1, False)),
        ("junk", Cores(4, True)),
    ],
)
def test_quota(machine: Path, quota: str, expected: Cores) -> None:
    (machine / "fs/cgroup/cpu.max").write_text(quota)
    assert core.available(machine) == expected


@pytest.mark.parametrize(("quota", "count"), [("-1", 4), ("300000", 3)])
def test_quota_of_version_1(machine: Path, quota: str, count: int) -> None:
    (machine / "fs/cgroup/cpu").mkdir()
    (machine / "fs/cgroup/cpu/cpu.cfs_quota_us").write_text(quota)
    (machine / "fs/cgroup/cpu/cpu.cfs_period_us").write_text("100000")
    assert core.available(machine).count == count


def test_thread_defaults() -> None:
    names = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
    assert core.thread_defaults(0, {}) == dict.fromkeys(names, "1")
    assert core.thread_defaults(4, {}) == dict.fromkeys(names, "4")
    assert core.thread_defaults(4, {names[0]: "7", names[1]: ""}) == dict.fromkeys(names[1:], "4")


@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        (1, None),
        (2, [{0, 1, 4, 5}, {2, 3, 6, 7}]),
        (3, [{0, 4}, {1, 5}, {2, 6}]),
        (4, [{0, 4}, {1, 5}, {2, 6}, {3, 7}]),
        (5, None),
        (0, None),
    ],
)
def test_shares_of_several_processes(machine: Path, processes: int, expected: list[set[int]] | None) -> None:
    assert core.shares(processes, machine) == expected


def test_nothing_is_shared_out_of_a_part_of_the_machine(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 4})
    assert core.shares(2, machine) is None
