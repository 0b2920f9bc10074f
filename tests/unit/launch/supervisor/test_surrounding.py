"""Tests of tfdist.launch.supervisor.surrounding."""

from __future__ import annotations

import os

import pytest

from tfdist.launch.host.core import Cores
from tfdist.launch.supervisor import surrounding
from tfdist.launch.wire.ticket import FINGERPRINT_VARIABLE, KEY_VARIABLE


def test_key_is_withheld(monkeypatch: pytest.MonkeyPatch) -> None:
    child = surrounding.of_rank({KEY_VARIABLE: "k", FINGERPRINT_VARIABLE: "f", "A": "b"})
    assert child == {"A": "b", "PYTHONUNBUFFERED": "1"}
    assert surrounding.of_rank({"PYTHONUNBUFFERED": ""}) == {"PYTHONUNBUFFERED": ""}


@pytest.mark.parametrize(("own", "share"), [({0, 1, 2, 3, 4, 5}, "3"), ({0, 1, 2}, "6")])
def test_threads(monkeypatch: pytest.MonkeyPatch, own: set[int], share: str) -> None:
    """Six cores shared by two ranks, or bound to them already."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3, 4, 5} if pid else own)
    monkeypatch.setattr(surrounding, "available", lambda: Cores(6, bindable=True))
    child = surrounding.of_rank({"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"})
    assert child["TF_NUM_INTRAOP_THREADS"] == share
