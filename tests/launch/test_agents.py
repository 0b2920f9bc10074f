"""Jobs whose ranks are started by agents on other hosts, which `machine` plays: how they begin, run and end."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from typing import Any

import pytest
from company import AT, COMMAND, NODES, STAYS, Company
from machine import BOUND_S, FIRST, HOST_TIMEOUT_S, LAUNCHER, SECOND, Machines

pytestmark = pytest.mark.starter("as given")

TELLS = """\
names = ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'TFDIST_LISTEN_ADDRESS', 'MASTER_ADDR')
print(*(os.environ[name] for name in names), socket.gethostname(), os.getcwd())
"""
SUMS = """\
import numpy as np, tfdist
tfdist.init(process_sets="dynamic")
between = tfdist.add_process_set([0, 3])
values = np.arange(100_003, dtype="float32")
total = tfdist.allreduce(values * (tfdist.rank() + 1), op=tfdist.Sum)
is_exact = np.array_equal(total, values * 10)
if between.included(): assert float(tfdist.allreduce(float(rank), op=tfdist.Sum, process_set=between)) == 3
last = float(tfdist.allreduce(float(rank), op=tfdist.Sum))
print(tfdist.local_rank(), tfdist.local_size(), tfdist.cross_size(), is_exact, last, flush=True)
"""
# What is promised when nobody is silent, and here the slowness of two cores.
SOON_S = 10 + 10


@pytest.fixture
def company(machines: Machines, launch: Any, wait_until: Any) -> Company:
    made = Company(machines, launch, wait_until)
    made.wait_for_hosts()
    return made


def _told(company: Company) -> list[str]:
    """What the four ranks say, two on each host."""
    return [
        f"[{rank}] {rank} 4 {rank % 2} 2 {address} {FIRST} {NODES[address]} {company.launch.folder}"
        for rank, address in enumerate((FIRST, FIRST, SECOND, SECOND))
    ]


@pytest.mark.parametrize("first", ["agents", "launcher"])
def test_either_side_comes_first(company: Company, wait_until: Any, first: str) -> None:
    company.key()
    company.script(TELLS)
    if first == "agents":
        agents = company.agents()
        wait_until(lambda: all("waiting up to 600 s" in company.launch.said(each) for each in agents), what="both")
        launcher = company.launcher()
    else:
        launcher = company.launcher()
        wait_until(lambda: "waiting for agents" in company.launch.said(launcher), what="the launcher")
        agents = company.agents()
    done = company.launch.end(launcher)
    assert done.code == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == _told(company)
    ended = [company.launch.end(each) for each in agents]
    assert [each.code for each in ended] == [0, 0]
    assert f"tfdist agent: node-2 runs ranks 0 to 1 of 4 for the launcher at {AT}\n" in ended[0].stderr
    if first == "agents":
        assert f"waiting up to 600 s for the launcher at {AT} (Connection refused)\n" in ended[0].stderr
    else:
        assert f"tfdistrun: waiting for agents at {AT}: 0 of 2\n" in done.stderr
    company.nothing_is_left(FIRST, SECOND, LAUNCHER)


@pytest.mark.parametrize("first", ["launcher", "other"])
def test_same_command_on_every_node(company: Company, wait_until: Any, first: str) -> None:
    company.key()
    company.script(TELLS)
    at = f"{FIRST}:4000"
    words = ("--nodes", "2", "--rendezvous", at, "--key-file", "job.key", "-np", "4", "python", "rank.py")
    order = (FIRST, SECOND) if first == "launcher" else (SECOND, FIRST)
    started = {}
    for address in order:
        started[address] = company.launch.start(*words, inside=company.machines.on(address))
        said = "waiting for agents" if address == FIRST else "waiting up to 600 s"
        if address == order[0]:
            wait_until(lambda each=started[address], text=said: text in company.launch.said(each), what=said)
    done, other = (company.launch.end(started[address]) for address in (FIRST, SECOND))
    assert (done.code, other.code) == (0, 0), done.stderr + other.stderr
    assert sorted(done.stdout.splitlines()) == _told(company)
    assert other.stdout == ""
    assert f"tfdistrun: this node serves the job of {at}, which shows its output\n" in other.stderr
    company.nothing_is_left(FIRST, SECOND)


@pytest.mark.slice("hosts")
def test_nodes_exit_with_the_status_of_the_job(company: Company) -> None:
    company.key()
    company.script("sys.exit(5) if rank == 1 else time.sleep(1000)")
    words = ("--nodes", "2", "--rendezvous", f"{FIRST}:4000", "--key-file", "job.key", "--slots-per-host", "1")
    nodes = [company.launch.start(*words, "python", "rank.py", inside=company.machines.on(at)) for at in NODES]
    done, other = (company.launch.end(each) for each in nodes)
    assert (done.code, other.code) == (5, 5), done.stderr + other.stderr
    assert "rank 1 on node-3 failed first: exit code 5" in done.stderr
    company.nothing_is_left(FIRST, SECOND)


@pytest.mark.slice("hosts")
def test_fewer_ranks_than_slots_and_hosts_of_one_name(company: Company) -> None:
    """The second agent has no rank, and ends with the job all the same."""
    company.key()
    company.script(TELLS)
    agents = [company.agent(FIRST), company.agent(FIRST)]
    done = company.launch.end(company.launcher("-np", "3"))
    assert done.code == 0, done.stderr
    assert sorted(line.split()[:5] for line in done.stdout.splitlines()) == [
        ["[0]", "0", "3", "0", "2"],
        ["[1]", "1", "3", "1", "2"],
        ["[2]", "2", "3", "0", "1"],
    ]
    assert [company.launch.end(each).code for each in agents] == [0, 0]


def test_more_ranks_than_slots(company: Company) -> None:
    company.key()
    company.script(TELLS)
    agents = company.agents()
    done = company.launch.end(company.launcher("-np", "5"))
    assert done.code == 2
    expected = "-np 5 exceeds the 4 slots of node-2:2, node-3:2; add slots or lower -np"
    assert expected in done.stderr
    ended = [company.launch.end(each) for each in agents]
    assert [(each.code, expected in each.stderr) for each in ended] == [(2, True), (2, True)]


@pytest.mark.slice("hosts")
def test_agents_that_do_not_come(company: Company) -> None:
    company.key()
    company.script(TELLS)
    agent = company.agent(SECOND)
    done = company.launch.end(company.launcher("--start-timeout", "3"))
    assert done.code == 1
    assert f"tfdistrun: waiting for agents at {AT}: 1 of 2 (node-3)\n" in done.stderr
    assert f"waited 3 s for agents at {AT}: 1 of 2 (node-3) came" in done.stderr
    assert company.launch.end(agent).code == 1


@pytest.mark.slice("hosts")
def test_launcher_that_does_not_come(company: Company) -> None:
    company.key()
    done = company.launch.end(company.agent(FIRST, "--wait", "1"))
    assert done.code == 1
    assert f"no launcher at {AT} within 1 s: Connection refused" in done.stderr


@pytest.mark.parametrize("side", ["agent", "launcher"])
def test_interrupted_while_it_waits(company: Company, wait_until: Any, side: str) -> None:
    company.key()
    company.script(TELLS)
    started = company.agent(FIRST) if side == "agent" else company.launcher()
    wait_until(lambda: "waiting" in company.launch.said(started), what="a line")
    started.send_signal(signal.SIGINT)
    done = company.launch.end(started)
    assert done.code == 130
    assert "interrupted before any rank was started\n" in done.stderr
    assert "Traceback" not in done.stderr


def test_other_version(company: Company) -> None:
    company.key()
    company.script(TELLS)
    (company.launch.folder / "old.py").write_text(
        "import sys, tfdist\ntfdist.__version__ = '0.0.7'\nfrom tfdist.command.main import main\nsys.exit(main())\n"
    )
    words = ("agent", "--launcher", AT, "--key-file", "job.key")
    agent = company.launch.start(*words, program=("old.py",), inside=company.machines.on(FIRST))
    done, ended = company.launch.end(company.launcher()), company.launch.end(agent)
    assert (done.code, ended.code) == (2, 2), done.stderr + ended.stderr
    for said in (done.stderr, ended.stderr):
        assert re.search(r"the agent on 'node-2' \(10\.77\.0\.2\) has tfdist 0\.0\.7, the launcher has tfdist \d", said)


def test_rank_that_fails(company: Company) -> None:
    company.key()
    company.script("print('to be seen', file=sys.stderr)\nsys.exit(6) if rank == 2 else time.sleep(1000)")
    agents = company.agents()
    done = company.launch.end(company.launcher())
    assert done.code == 6, done.stderr
    assert "rank 2 on node-3 failed first: exit code 6" in done.stderr
    assert "[2] to be seen\n" in done.stderr
    assert "  0     node-2  terminated by tfdistrun after rank 2 failed\n" in done.stderr
    assert "mpirun" not in done.stderr
    assert [company.launch.end(each).code for each in agents] == [6, 6]
    company.nothing_is_left(FIRST, SECOND)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_launcher_is_asked_to_end(company: Company, signum: int) -> None:
    launcher, agents = company.running()
    launcher.send_signal(signum)
    done = company.launch.end(launcher)
    assert done.code == 128 + signum, done.stderr
    assert done.seconds < SOON_S
    assert [company.launch.end(each).code for each in agents] == [128 + signum] * 2
    company.nothing_is_left(FIRST, SECOND)


def test_agent_is_killed(company: Company) -> None:
    launcher, agents = company.running()
    os.kill(company.agent_of(SECOND), signal.SIGKILL)
    done = company.launch.end(launcher)
    assert done.code == 1, done.stderr
    assert done.seconds < SOON_S
    assert (
        "tfdistrun: host node-3 with ranks 2 and 3 was lost: it lost its agent: the process was killed, or the host is "
        "gone\n"
    ) in done.stderr
    assert "  3     node-3  lost with its host\n" in done.stderr
    assert company.launch.end(agents[0]).code == 1
    company.nothing_is_left(FIRST, SECOND)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_agent_is_asked_to_end(company: Company, signum: signal.Signals) -> None:
    launcher, agents = company.running()
    os.kill(company.agent_of(SECOND), signum)
    done = company.launch.end(launcher)
    assert done.code == 1, done.stderr
    assert done.seconds < SOON_S
    assert f"host node-3 with ranks 2 and 3 was lost: it left: its agent was ended by {signum.name}\n" in done.stderr
    ended = company.launch.end(agents[1])
    assert f"tfdist agent: {signum.name}: ending the ranks of this host\n" in ended.stderr
    company.nothing_is_left(FIRST, SECOND)


@pytest.mark.parametrize("what", ["agent", "launcher"])
def test_killed_before_the_ranks_have_started(company: Company, wait_until: Any, what: str) -> None:
    """The supervisors of one host are stopped before they connect."""
    company.key()
    company.script(STAYS)
    agents = company.agents()
    launcher = company.launcher(count=3)
    wait_until(lambda: "2 of 3" in company.launch.said(launcher), what="both agents")
    if what == "launcher":
        launcher.kill()
        company.launch.end(launcher)
        for each in agents:
            ended = company.launch.end(each)
            assert ended.code == 1
            assert f"the launcher at {AT} is gone" in ended.stderr
    else:
        os.kill(company.agent_of(SECOND), signal.SIGKILL)
        wait_until(lambda: "1 of 3 (node-2)" in company.launch.said(launcher), what="the loss")
        launcher.send_signal(signal.SIGINT)
        assert company.launch.end(launcher).code == 130
        ended = company.launch.end(agents[0])
        assert ended.code == 130
        assert "tfdist agent: the launcher was interrupted\n" in ended.stderr
    company.nothing_is_left(FIRST, SECOND, LAUNCHER)


def test_launcher_is_killed(company: Company) -> None:
    launcher, agents = company.running()
    launcher.kill()
    began = time.monotonic()
    ended = [company.launch.end(each) for each in agents]
    assert [each.code for each in ended] == [1, 1]
    assert f"tfdist agent: the launcher at {AT} is gone; ending the ranks of this host\n" in ended[0].stderr
    company.nothing_is_left(FIRST, SECOND, LAUNCHER)
    assert time.monotonic() - began < SOON_S


@pytest.mark.parametrize("how", ["kill", "freeze", pytest.param("unplug", marks=pytest.mark.slice("hosts"))])
def test_host_is_lost(company: Company, how: str) -> None:
    launcher, agents = company.running()
    if how == "unplug":
        company.machines.unplug(SECOND)
    else:
        company.machines.signal(SECOND, signal.SIGKILL if how == "kill" else signal.SIGSTOP)
    done = company.launch.end(launcher)
    assert done.code == 1, done.stderr
    assert done.seconds < BOUND_S
    assert "host node-3 with ranks 2 and 3 was lost: it " in done.stderr
    if how == "kill":
        assert "it has not answered for" not in done.stderr
    else:
        assert f"it has not answered for {HOST_TIMEOUT_S} s (TFDIST_HOST_TIMEOUT)" in done.stderr
    assert "  0     node-2  terminated by tfdistrun after host node-3 was lost\n" in done.stderr
    assert company.launch.end(agents[0]).code == 1
    company.nothing_is_left(FIRST)
    if how == "freeze":
        company.machines.signal(SECOND, signal.SIGCONT)
    company.nothing_is_left(SECOND)


def test_variables_and_folder(company: Company) -> None:
    """The launcher's folder is in memory that the hosts do not share."""
    company.key()
    folder = f"/dev/shm/tfdist-test-{os.getpid()}"
    names = ("KERAS_MARK", "AWS_MINE", "OTHER_MINE", "TFDIST_RUN_KEY", "TFDIST_MARK")
    company.script(f"import json\nprint(json.dumps([os.getcwd(), *(os.environ.get(name) for name in {names})]))")
    agents = company.agents()
    key = company.launch.folder / "job.key"
    os.mkdir(folder)
    try:
        variables = {"KERAS_MARK": "k", "AWS_MINE": "a b=c", "OTHER_MINE": "o", "TFDIST_RUN_KEY": "x"}
        launcher = company.launcher(
            *("--key-file", str(key), "--export", "AWS_MINE"), variables=variables, inside=("env", "-C", folder)
        )
        done = company.launch.end(launcher)
    finally:
        os.rmdir(folder)
    assert done.code == 0, done.stderr
    expected = [str(company.launch.folder), "k", "a b=c", None, None, None]
    assert [json.loads(line[4:]) for line in done.stdout.splitlines()] == [expected] * 4
    for name in NODES.values():
        said = f"tfdistrun: note: host {name}: there is no folder {folder} there, so its ranks start in "
        assert done.stderr.count(said) == 1
    assert [company.launch.end(each).code for each in agents] == [0, 0]


@pytest.mark.parametrize("at", [pytest.param(AT, marks=pytest.mark.slice("hosts")), "[fd00:77::1]:4000"])
def test_ranks_of_two_hosts_sum(company: Company, at: str) -> None:
    """With the real engine: in the shared memory of each host, and between the hosts by sockets."""
    company.key()
    company.script(SUMS)
    company.machines.add_addresses("fd00:77::1/64", "fd00:77::2/64", "fd00:77::3/64")
    agents = [company.agent(address, at=at) for address in NODES]
    done = company.launch.end(company.launcher(at=at, variables={"TF_CPP_MIN_LOG_LEVEL": "3"}))
    assert done.code == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] {rank % 2} 2 2 True 6.0" for rank in range(4)]
    assert [company.launch.end(each).code for each in agents] == [0, 0]
    company.nothing_is_left(FIRST, SECOND, LAUNCHER)


def test_killed_rank_is_named_by_the_others(company: Company) -> None:
    company.key()
    company.script(SUMS + "if rank == 3: os.kill(os.getpid(), signal.SIGKILL)\ntfdist.barrier()\n")
    agents = company.agents()
    done = company.launch.end(company.launcher(variables={"TF_CPP_MIN_LOG_LEVEL": "3"}))
    assert done.code == 137, done.stderr
    assert "rank 3 on node-3 failed first: killed by SIGKILL" in done.stderr
    assert "lost its connection to rank 3 (host node-3)" in done.stderr
    assert [company.launch.end(each).code for each in agents] == [137, 137]


@pytest.mark.slice("hosts")
def test_ipv6(company: Company) -> None:
    company.key()
    company.script(TELLS)
    company.machines.add_addresses("fd00:77::1/64", "fd00:77::2/64", "fd00:77::3/64")
    at = "[fd00:77::1]:4000"
    agents = [company.agent(address, at=at) for address in NODES]
    done = company.launch.end(company.launcher(at=at))
    assert done.code == 0, done.stderr
    assert {tuple(line.split()[5:7]) for line in done.stdout.splitlines()} == {
        ("fd00:77::2", "fd00:77::2"),
        ("fd00:77::3", "fd00:77::2"),
    }
    assert [company.launch.end(each).code for each in agents] == [0, 0]


def test_command_explains_itself(launch: Any) -> None:
    done = launch.end(launch.start("agent", "--help", program=COMMAND))
    assert done.code == 0
    assert "tfdistrun --agents 2 --listen node1:4000 --key-file job.key" in done.stdout
    assert "token_hex(32)" in done.stdout
