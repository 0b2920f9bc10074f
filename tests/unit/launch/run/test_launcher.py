"""Tests of where tfdist.launch.run.launcher listens; what it runs is tested by the jobs of tests/launch."""

from __future__ import annotations

from typing import Any

import pytest

from tfdist.launch.host import host
from tfdist.launch.host.core import Cores
from tfdist.launch.host.host import Host
from tfdist.launch.run import launcher
from tfdist.launch.run.launcher import Plan
from tfdist.launch.start.mpirun import Mpirun


def _address(**call: Any) -> str:
    mpirun = Mpirun("m", (Host("127.0.0.1", 2), Host("192.0.2.1", 1)), cores=Cores(2, bindable=True), **call)
    with launcher.listen(Plan(mpirun, ("x",), {}, 30.0)) as listener:
        return str(listener.getsockname()[0])


def test_local_job_listens_on_loopback() -> None:
    assert _address(local=True) == "127.0.0.1"
    assert _address(local=True, interfaces=("eth9",)) == "127.0.0.1"


def test_named_interface() -> None:
    assert _address(local=False, interfaces=("lo",)) == "127.0.0.1"
    assert _address(local=False, interfaces=("zz9", "lo")) == "127.0.0.1"


def test_interface_towards_the_first_remote_host(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = {"192.0.2.1": "127.0.0.1"}
    monkeypatch.setattr(host, "address", addresses.__getitem__)
    monkeypatch.setattr(host, "is_local", lambda name: name.startswith("127."))
    assert _address(local=False) == "127.0.0.1"


def test_plan_does_not_show_the_environment() -> None:
    mpirun = Mpirun("m", (Host("a", 1),), local=True, cores=Cores(1, bindable=True))
    assert "secret" not in repr(Plan(mpirun, ("x",), {"TOKEN": "secret"}, 30.0))
