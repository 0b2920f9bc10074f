"""tfdist doctor -H over two hosts, played on one machine by the fixture `agent`."""

from __future__ import annotations

import json
from typing import Any

# The doctor with a launcher to which no host is this machine.
DOCTOR = """
import functools, sys
from tfdist.command.doctor import child, command

hosts, *words = sys.argv[1:]
for name in ("told", "between"):
    setattr(child, name, functools.partial(getattr(child, name), launcher=(sys.executable, "launch.py", *words)))
sys.exit(command.main(["--json", "-H", hosts, "--run-args=--start-timeout 60"]))
"""


def _examine(launch: Any, agent: Any, hosts: str) -> tuple[int, dict[str, dict[str, str]]]:
    (launch.folder / "doctor.py").write_text(DOCTOR)
    agent.start(launch, "--version")  # writes the launcher
    daemons = ("--mpi-args", agent.mpi_args) if launch.starter == "mpi" else ("--no-mpi",)
    words = (hosts, "--network-interfaces", "lo", *daemons)
    done = launch.end(launch.start(*words, variables=agent.variables, program=["doctor.py"]))
    assert done.stdout.startswith("{"), done.stderr
    return done.code, {each["name"]: each for each in json.loads(done.stdout)["findings"]}


def test_two_hosts_that_fit(launch: Any, agent: Any) -> None:
    code, found = _examine(launch, agent, "nodea:2,nodeb:1")
    assert (code, {each["state"] for each in found.values()}) == (0, {"ok"}), found
    assert found["working folder"]["text"] == f"{launch.folder} on all 2 hosts"
    assert "within 1 s" in found["clocks"]["text"]
    assert "between nodea and nodeb, 16 MiB" in found["all-reduce"]["text"] and "GB/s" in found["all-reduce"]["text"]


def test_host_that_cannot_be_reached(launch: Any, agent: Any) -> None:
    code, found = _examine(launch, agent, "nodea:1,refused:1")
    assert (code, list(found)) == (1, ["start"])
    assert "Connection refused" in found["start"]["text"]
    assert "ssh refused true" in found["start"]["remedy"]
