"""Jobs over two hosts, played on one machine: an ssh agent that runs the command under another host name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import Any

import pytest

AGENT = """\
#!/bin/sh
# Called as: agent OPTIONS HOST COMMAND...; a host is a UTS name, and remote shells start without our variables.
while [ "${1#-}" != "$1" ]; do case $1 in -o|-p|-i) shift ;; esac; shift; done
host=$1; shift
echo "$host" >>"$AGENT_LOG"
case $host in
  lost) exec sleep 1000 ;;
esac
exec unshare --uts env -u TFDIST_RUN_KEY -u KERAS_MARK sh -c "hostname $host; $*"
"""
# The names of such hosts are in no resolver.
PROGRAM = """\
import sys
from tfdist.launch import host
from tfdist.launch.command import main
host.is_local = lambda name: False
host.address = lambda name: "127.0.0.1"
sys.exit(main())
"""


def _can_unshare() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "--uts", "hostname", "probe"], capture_output=True).returncode == 0


pytestmark = pytest.mark.skipif(not _can_unshare(), reason="needs the right to make UTS namespaces (root)")


def _start(launch: Any, *words: str) -> Any:
    agent = launch.folder / "agent.sh"
    agent.write_text(AGENT)
    agent.chmod(0o755)
    (launch.folder / "launch.py").write_text(PROGRAM)
    # Where the agent itself is to be found, and that names need not resolve, is said to mpirun alone.
    extra = f"--prtemca plm_ssh_agent {agent} --prtemca prte_keep_fqdn_hostnames 1"
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), *sys.path]))
    variables = {"AGENT_LOG": str(launch.folder / "agent.log"), "KERAS_MARK": "kept", "PYTHONPATH": path}
    return launch.start(
        "--network-interfaces", "lo", "--mpi-args", extra, *words, variables=variables, program=["launch.py"]
    )


def test_two_hosts(launch: Any) -> None:
    launch.script(
        "import socket\nprint(socket.gethostname(), os.environ['KERAS_MARK'], 'TFDIST_RUN_KEY' in os.environ)"
    )
    done = launch.end(_start(launch, "-np", "3", "-H", "nodea:2,nodeb:2", "python", "rank.py"))
    assert done.code == 0, done.stderr
    lines = ["[0] nodea kept False", "[1] nodea kept False", "[2] nodeb kept False"]
    assert sorted(done.stdout.splitlines()) == lines


def test_failure_names_the_host(launch: Any) -> None:
    launch.script("sys.exit(6) if rank == 1 else time.sleep(1000)")
    done = launch.end(_start(launch, "-np", "2", "-H", "nodea:1,nodeb:1", "python", "rank.py"))
    assert done.code == 6, done.stderr
    assert "rank 1 on nodeb failed first: exit code 6" in done.stderr


def test_host_that_does_not_answer(launch: Any) -> None:
    launch.script("pass")
    done = launch.end(_start(launch, "-np", "2", "--start-timeout", "2", "-H", "nodea:1,lost:1", "python", "rank.py"))
    assert done.code == 1
    assert "not all ranks started in time" in done.stderr
    assert "lost   never started" in done.stderr
    assert "ssh lost true" in done.stderr
