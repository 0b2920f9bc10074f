"""Jobs without MPI over several hosts, whose agents are started by ssh or srun; the fixture `agent` plays both."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.starter("as given")

# The names of such hosts are in no resolver.
PROGRAM = """\
import sys
from tfdist.launch.host import host
from tfdist.launch.command import main
host.is_local = lambda name: name == "localhost"
host.address = lambda name: "127.0.0.1"
sys.exit(main())
"""
HEAD = "import os, socket, sys, time\nrank = int(os.environ['RANK'])\n"
TELLS = "print(socket.gethostname(), *(os.environ[f'{name}RANK'] for name in ('LOCAL_', '')), os.environ['KERAS_MARK'])"
STAYS = "open(f'up{rank}', 'w').close()\nwhile True: time.sleep(0.05)\n"
# One process for each node of the list, which get the same input.
SRUN = """\
#!/usr/bin/env python3
import os, subprocess, sys
words = sys.argv[1:]
options = dict(word[2:].split("=", 1) for word in words if word.startswith("--") and "=" in word)
command = words[next(place for place, word in enumerate(words) if not word.startswith("--")):]
open("srun-words", "w").write(" ".join(words))
given = sys.stdin.buffer.read()
started = []
for node in options["nodelist"].split(","):
    words = ["unshare", "--uts", "sh", "-c", f'hostname {node}; exec "$@"', "sh", *command]
    started.append(subprocess.Popen(words, stdin=subprocess.PIPE, env=os.environ | {"SLURMD_NODENAME": node}))
    started[-1].stdin.write(given)
    started[-1].stdin.close()
sys.exit(max(process.wait() for process in started))
"""
SLURM = {"SLURM_JOB_ID": "3", "SLURM_JOB_NODELIST": "nodea,nodeb", "SLURM_TASKS_PER_NODE": "2,1"}


def _start(launch: Any, agent: Any, text: str, *words: str, variables: Mapping[str, str] | None = None) -> Any:
    (launch.folder / "launch.py").write_text(PROGRAM)
    (launch.folder / "rank.py").write_text(HEAD + text)
    ours = ("--no-mpi", "--network-interfaces", "lo")
    given = {**agent.variables, **(variables or {})}
    return launch.start(*ours, *words, "python", "rank.py", variables=given, program=["launch.py"])


def test_two_hosts_and_this_one(launch: Any, agent: Any) -> None:
    done = launch.end(_start(launch, agent, TELLS, "-np", "4", "-H", "nodea:1,localhost:2,nodeb:1"))
    assert done.code == 0, done.stderr
    own = os.uname().nodename
    places = ["[0] nodea 0 0 kept", f"[1] {own} 0 1 kept", f"[2] {own} 1 2 kept", "[3] nodeb 0 3 kept"]
    assert sorted(done.stdout.splitlines()) == places
    assert (launch.folder / "agent.log").read_text().split() == ["nodea", "nodeb"]
    assert done.stderr == ""


def test_rank_that_fails(launch: Any, agent: Any) -> None:
    text = "sys.exit(6) if rank == 1 else time.sleep(1000)"
    done = launch.end(_start(launch, agent, text, "-np", "2", "-H", "nodea:1,nodeb:1"))
    assert done.code == 6, done.stderr
    assert "rank 1 on nodeb failed first: exit code 6" in done.stderr
    assert "ssh" not in done.stderr


def test_rank_without_a_record(launch: Any, agent: Any) -> None:
    text = "os.kill(os.getppid(), 9) if rank == 1 else time.sleep(1000)"
    done = launch.end(_start(launch, agent, text, "-np", "3", "-H", "nodea:1,nodeb:2"))
    assert done.code == 1, done.stderr
    assert "rank 1 on nodeb" in done.stderr
    assert "[ssh " not in done.stderr, "its agents have nothing to add"


def test_host_that_refuses(launch: Any, agent: Any) -> None:
    done = launch.end(_start(launch, agent, TELLS, "-np", "3", "-H", "nodea:2,refused:1"))
    assert done.code == 1
    assert (
        "tfdistrun: no agent could be started on refused: ssh: connect to host refused port 22: Connection refused. "
        "Check that `ssh refused true` works without a password, and that Python and tfdist have the same paths there\n"
    ) in done.stderr
    assert done.stdout == ""


def test_host_that_does_not_answer(launch: Any, agent: Any) -> None:
    done = launch.end(_start(launch, agent, TELLS, "-np", "2", "--start-timeout", "3", "-H", "nodea:1,lost:1"))
    assert done.code == 1
    assert "tfdistrun: waiting for the agents of lost\n" in done.stderr
    assert "no agent could be started on lost: ssh: connect to host lost port 22: No route to host. " in done.stderr


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_launcher_ends(launch: Any, agent: Any, wait_until: Any, signum: int) -> None:
    job = _start(launch, agent, STAYS, "-np", "3", "-H", "nodea:1,localhost:1,nodeb:1")
    wait_until(lambda: len(launch.files("up*")) == 3, what="the ranks")
    job.send_signal(signum)
    done = launch.end(job)
    assert done.code == (130 if signum == signal.SIGINT else -signum)
    wait_until(lambda: not launch.processes(), seconds=10, what="the end of all")


def test_key_is_given_on_the_input_alone(launch: Any, agent: Any, wait_until: Any) -> None:
    job = _start(launch, agent, STAYS, "-np", "2", "-H", "nodea:1,nodeb:1", "--verbose")
    wait_until(lambda: len(launch.files("up*")) == 2, what="the ranks")
    programs = launch.processes()
    agents = [words for words in programs.values() if "agent/summoned.py" in words]
    assert len(agents) >= 6, "ssh or its shell, agent, crew and supervisor, on each host"
    for words in agents:
        assert not [word for word in words.split() if len(word) > 40 and os.sep not in word]
    for pid in programs:
        assert b"TFDIST_RUN_KEY=" not in Path(f"/proc/{pid}/environ").read_bytes()
    job.send_signal(signal.SIGINT)
    assert launch.end(job).code == 130


def test_nodes_of_slurm(launch: Any, agent: Any) -> None:
    program = launch.folder / "bin" / "srun"
    program.write_text(SRUN)
    program.chmod(0o755)
    done = launch.end(_start(launch, agent, TELLS, variables=SLURM))
    assert done.code == 0, done.stderr
    places = ["[0] nodea 0 0 kept", "[1] nodea 1 1 kept", "[2] nodeb 0 2 kept"]
    assert sorted(done.stdout.splitlines()) == places
    words = (launch.folder / "srun-words").read_text()
    assert words.startswith("--overlap --export=ALL --input=all --kill-on-bad-exit=0 --ntasks-per-node=1 --nodes=2 ")
    assert not (launch.folder / "agent.log").exists(), "no ssh"


def test_srun_that_fails(launch: Any, agent: Any) -> None:
    program = launch.folder / "bin" / "srun"
    program.write_text("#!/bin/sh\necho 'srun: error: Unable to create step' >&2\nexit 1\n")
    program.chmod(0o755)
    done = launch.end(_start(launch, agent, TELLS, variables=SLURM))
    assert done.code == 1
    assert "no agent could be started on nodea, nodeb: srun: error: Unable to create step. Check" in done.stderr
    assert "ssh" not in done.stderr
