"""Tests of the pure parts of task; the supervisor itself is tested by the jobs of tests/launch."""

from __future__ import annotations

import os

import pytest

from tfdist.launch.host.core import Cores
from tfdist.launch.supervisor import task
from tfdist.launch.wire.ticket import KEY_VARIABLE


def test_tail() -> None:
    assert task.tail_lines(b"") == []
    assert task.tail_lines(b"\n \n") == []
    assert task.tail_lines(b"1%\r2%\r\na\n") == ["2%", "a"]
    assert task.tail_lines(b"\xff" + b"x\n" * 99) == ["x"] * task.TAIL_LINES


def test_tail_leaves_out_what_every_process_of_tensorflow_says() -> None:
    chatter = b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
    assert task.tail_lines(chatter + b"ValueError: no\n" + chatter) == ["ValueError: no"]
    assert task.tail_lines(chatter) == [], "so that another stream may tell"


def test_key_is_withheld(monkeypatch: pytest.MonkeyPatch) -> None:
    child = task.child_environment({KEY_VARIABLE: "k", "A": "b"})
    assert child == {"A": "b", "PYTHONUNBUFFERED": "1"}
    assert task.child_environment({"PYTHONUNBUFFERED": ""}) == {"PYTHONUNBUFFERED": ""}


@pytest.mark.parametrize(("own", "share"), [({0, 1, 2, 3, 4, 5}, "3"), ({0, 1, 2}, "6")])
def test_threads(monkeypatch: pytest.MonkeyPatch, own: set[int], share: str) -> None:
    """Six cores shared by two ranks, or bound to them already."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3, 4, 5} if pid else own)
    monkeypatch.setattr(task, "available", lambda: Cores(6, bindable=True))
    child = task.child_environment({"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"})
    assert child["TF_NUM_INTRAOP_THREADS"] == share
