"""Jobs over two hosts, played on one machine by the fixture `agent`."""

from __future__ import annotations

from typing import Any

# The names of such hosts are in no resolver.
PROGRAM = """\
import sys
from tfdist.launch import host
from tfdist.launch.command import main
host.is_local = lambda name: False
host.address = lambda name: "127.0.0.1"
sys.exit(main())
"""


def _start(launch: Any, agent: Any, *words: str) -> Any:
    (launch.folder / "launch.py").write_text(PROGRAM)
    return launch.start(
        "--network-interfaces",
        "lo",
        "--mpi-args",
        agent.mpi_args,
        *words,
        variables=agent.variables,
        program=["launch.py"],
    )


def test_two_hosts(launch: Any, agent: Any) -> None:
    launch.script(
        "import socket\nprint(socket.gethostname(), os.environ['KERAS_MARK'], 'TFDIST_RUN_KEY' in os.environ)"
    )
    done = launch.end(_start(launch, agent, "-np", "3", "-H", "nodea:2,nodeb:2", "python", "rank.py"))
    assert done.code == 0, done.stderr
    lines = ["[0] nodea kept False", "[1] nodea kept False", "[2] nodeb kept False"]
    assert sorted(done.stdout.splitlines()) == lines


def test_failure_names_the_host(launch: Any, agent: Any) -> None:
    launch.script("sys.exit(6) if rank == 1 else time.sleep(1000)")
    done = launch.end(_start(launch, agent, "-np", "2", "-H", "nodea:1,nodeb:1", "python", "rank.py"))
    assert done.code == 6, done.stderr
    assert "rank 1 on nodeb failed first: exit code 6" in done.stderr


def test_host_that_does_not_answer(launch: Any, agent: Any) -> None:
    launch.script("pass")
    done = launch.end(
        _start(launch, agent, "-np", "2", "--start-timeout", "2", "-H", "nodea:1,lost:1", "python", "rank.py")
    )
    assert done.code == 1
    assert "not all ranks started in time" in done.stderr
    assert "lost   never started" in done.stderr
    assert "ssh lost true" in done.stderr
