"""Jobs over two hosts, played on one machine by the fixture `agent`."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.starter("mpi")


def test_two_hosts(launch: Any, agent: Any) -> None:
    launch.script(
        "import socket\nprint(socket.gethostname(), os.environ['KERAS_MARK'], 'TFDIST_RUN_KEY' in os.environ)"
    )
    done = launch.end(agent.start(launch, "-np", "3", "-H", "nodea:2,nodeb:2", "python", "rank.py"))
    assert done.code == 0, done.stderr
    lines = ["[0] nodea kept False", "[1] nodea kept False", "[2] nodeb kept False"]
    assert sorted(done.stdout.splitlines()) == lines


def test_failure_names_the_host(launch: Any, agent: Any) -> None:
    launch.script("sys.exit(6) if rank == 1 else time.sleep(1000)")
    done = launch.end(agent.start(launch, "-np", "2", "-H", "nodea:1,nodeb:1", "python", "rank.py"))
    assert done.code == 6, done.stderr
    assert "rank 1 on nodeb failed first: exit code 6" in done.stderr


def test_host_that_does_not_answer(launch: Any, agent: Any) -> None:
    launch.script("pass")
    done = launch.end(
        agent.start(launch, "-np", "2", "--start-timeout", "2", "-H", "nodea:1,lost:1", "python", "rank.py")
    )
    assert done.code == 1
    assert (
        "tfdistrun: not all ranks started in time: host lost cannot be reached by ssh\n"
        "  rank  host   outcome\n"
        "  0     nodea  never started\n"
        "  1     lost   never started\n"
        "next: check that host lost is up and on the network: `ssh lost true` ends with: "
        "ssh: connect to host lost port 22: No route to host\n"
    ) in done.stderr


def test_host_that_refuses(launch: Any, agent: Any) -> None:
    """mpirun gives up at once, and its own words are many."""
    launch.script("pass")
    done = launch.end(agent.start(launch, "-np", "3", "-H", "nodea:2,refused:1", "python", "rank.py"))
    assert done.code == 1
    assert "tfdistrun: mpirun exited before all ranks did: host refused cannot be reached by ssh\n" in done.stderr
    assert done.stderr.endswith("ends with: ssh: connect to host refused port 22: Connection refused\n")
