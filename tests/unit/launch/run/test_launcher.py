"""Tests of the plan of tfdist.launch.run.launcher; what it runs is tested by the jobs of tests/launch."""

from __future__ import annotations

from tfdist.launch.host.core import Cores
from tfdist.launch.host.host import Host
from tfdist.launch.run.plan import Plan
from tfdist.launch.start.mpirun import Mpirun


def test_plan_does_not_show_the_environment() -> None:
    mpirun = Mpirun("m", (Host("a", 1),), local=True, cores=Cores(1, bindable=True))
    assert "secret" not in repr(Plan(mpirun, ("x",), {"TOKEN": "secret"}, 30.0))
