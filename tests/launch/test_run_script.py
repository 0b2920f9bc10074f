"""`tfdist.run` from scripts: functions of `__main__`, interruption, what others can see, and two hosts."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

HEAD = """\
import os, signal, sys, time
import tfdist

def rank():
    return int(os.environ["RANK"])

def wait_for(name):
    while not os.path.exists(name): time.sleep(0.01)

"""
# Names of such hosts are in no resolver, and the launcher must take them for other machines.
LAUNCHER = """\
import sys
from tfdist.launch.function import runner
from tfdist.launch.host import host
host.is_local = lambda name: False
host.address = lambda name: "127.0.0.1"
sys.exit(runner.main())
"""


def _start(launch: Any, text: str, name: str = "job.py", variables: Any = None) -> Any:
    path = launch.folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(HEAD + text)
    return launch.start(program=[name], variables=variables)


def _start_on_hosts(launch: Any, agent: Any, text: str) -> Any:
    (launch.folder / "launch.py").write_text(LAUNCHER)
    head = (
        "from tfdist.launch.function import session\nsession.PROGRAM = (sys.executable, 'launch.py')\n"
        f"where = dict(network_interfaces='lo', mpi_args={agent.mpi_args!r})\n"
    )
    return _start(launch, head + text, variables=agent.variables)


MAIN = """
import hashlib
from neighbour import twice

SCALE = 3

class Point:
    def __init__(self, x): self.x = x
    def __eq__(self, other): return type(self) is type(other) and self.x == other.x
    def __hash__(self): return 0

class Odd(Exception):
    pass

def scaled(point):
    return Point(twice(SCALE * point.x + rank()))

def odd(point):
    if rank() == 1: raise Odd(point.x)
    time.sleep(1000)

def closure(shift):
    return lambda point: scaled(Point(point.x + shift))

# No guard: the ranks do not run this script.
assert tfdist.run(scaled, (Point(1),), num_proc=2) == [Point(6), Point(8)]
assert tfdist.run(closure(5), (Point(1),), num_proc=1) == [Point(36)]
assert tfdist.run(lambda *args, **kwargs: (args, kwargs), [1], {"two": 2}) == [((1,), {"two": 2})]
try:
    tfdist.run(odd, [Point(7)], num_proc=2)
except Odd as error:
    assert error.args == (7,) and error.__cause__.rank == 1 and "in odd" in str(error.__cause__)
    print("caught")
"""


def test_functions_and_classes_of_main(launch: Any) -> None:
    """The script is in another folder than the working one, and so is the module that it imports."""
    (launch.folder / "sub").mkdir()
    (launch.folder / "sub/neighbour.py").write_text("def twice(x): return 2 * x\n")
    done = launch.end(_start(launch, MAIN, "sub/job.py"))
    assert (done.code, done.stdout) == (0, "caught\n"), done.stderr


def test_standard_modules_are_not_those_of_the_callers_folder(launch: Any) -> None:
    """Launcher, supervisors and ranks start in the caller's working folder, and must not import what lies there."""
    for name in ("queue", "base64", "hashlib", "pickle", "cloudpickle"):
        (launch.folder / f"{name}.py").write_text("raise SystemExit('imported from the working folder')\n")
    done = launch.end(_start(launch, "print(tfdist.run(rank, num_proc=2))", "sub/job.py"))
    assert done.stdout == "[0, 1]\n", done.stderr


WORK = """
def work(sigint, sigterm):
    def stop(signum, frame):
        open(f"got{rank()}", "w").close()
        if sigint: sys.exit(0)
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, signal.SIG_DFL if sigterm else signal.SIG_IGN)
    open(f"up{rank()}", "w").close()
    while True: time.sleep(0.05)

"""


def _working(launch: Any, wait_until: Any, sigint: bool = True, sigterm: bool = True) -> Any:
    job = _start(launch, f"{WORK}tfdist.run(work, ({sigint}, {sigterm}), num_proc=2)")
    wait_until(lambda: len(launch.files("up*")) == 2, what="both ranks")
    return job


def test_ctrl_c_is_passed_on_and_waited_for(launch: Any, wait_until: Any) -> None:
    job = _working(launch, wait_until)
    job.send_signal(signal.SIGINT)
    done = launch.end(job)
    assert done.code == -signal.SIGINT
    assert done.stderr.count("KeyboardInterrupt") == 1
    assert len(launch.files("got*")) == 2
    assert done.seconds < 8
    assert launch.processes() == {}


def test_second_ctrl_c_kills(launch: Any, wait_until: Any) -> None:
    job = _working(launch, wait_until, sigint=False, sigterm=False)
    job.send_signal(signal.SIGINT)
    wait_until(lambda: len(launch.files("got*")) == 2, what="both ranks to hear of it")
    job.send_signal(signal.SIGINT)
    done = launch.end(job)
    assert done.code == -signal.SIGINT
    assert done.seconds < 5
    assert launch.processes() == {}


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_caller_killed(launch: Any, wait_until: Any, signum: int) -> None:
    job = _working(launch, wait_until)
    os.kill(job.pid, signum)
    launch.end(job)
    wait_until(lambda: not launch.processes(), seconds=10, what="the end of all processes")


def test_exception_in_the_caller_ends_the_job(launch: Any, wait_until: Any) -> None:
    text = (
        f"{WORK}def stop(*_): raise TimeoutError('enough')\nsignal.signal(signal.SIGALRM, stop)\n"
        "try:\n    tfdist.run(work, (True, True), num_proc=2)\nexcept TimeoutError as error:\n    print(error)\n"
    )
    job = _start(launch, text)
    wait_until(lambda: len(launch.files("up*")) == 2, what="both ranks")
    job.send_signal(signal.SIGALRM)
    done = launch.end(job)
    assert (done.code, done.stdout) == (0, "enough\n"), done.stderr


def test_function_and_result_are_nowhere_to_be_read(launch: Any, wait_until: Any) -> None:
    text = """
def work(secret):
    open(f"up{rank()}", "w").close()
    wait_for("go")
    return secret[::-1]

print(tfdist.run(work, ("THE" + "SECRET",), num_proc=2))
"""
    job = _start(launch, text)
    wait_until(lambda: len(launch.files("up*")) == 2, what="both ranks")
    running = launch.processes()
    assert sum("function/worker.py" in words for words in running.values()) >= 2
    seen = [Path(f"/proc/{pid}/{name}").read_bytes() for pid in running for name in ("cmdline", "environ")]
    (launch.folder / "go").touch()
    done = launch.end(job)
    assert done.stdout == "['TERCESEHT', 'TERCESEHT']\n", done.stderr
    assert not any(b"THESECRET" in text for text in seen)
    assert sorted(path.name for path in launch.folder.iterdir()) == ["go", "job.py", "up0", "up1"]


HOSTS = """
import hashlib, random, socket
data = random.Random(0).randbytes(9_000_001)

def turn(received):
    return socket.gethostname(), received[rank() + 1 :] + received[: rank() + 1]

found = tfdist.run(turn, (data,), num_proc=3, hosts="nodea:2,nodeb:1", **where)
print([host for host, _ in found])
print([result == data[n:] + data[:n] for n, (_, result) in enumerate(found, 1)])

def fail():
    if rank() == 2: raise KeyError(socket.gethostname())
    time.sleep(1000)

try:
    tfdist.run(fail, num_proc=3, hosts="nodea:2,nodeb:1", **where)
except KeyError as error:
    print(error, error.__cause__.rank, "rank 2 of 3 on nodeb" in str(error.__cause__))
"""


def test_two_hosts(launch: Any, agent: Any) -> None:
    done = launch.end(_start_on_hosts(launch, agent, HOSTS))
    assert done.code == 0, done.stderr
    expected = ["['nodea', 'nodea', 'nodeb']", "[True, True, True]", "'nodeb' 2 True"]
    assert done.stdout.splitlines() == expected


def test_host_that_does_not_answer(launch: Any, agent: Any) -> None:
    text = "tfdist.run(rank, num_proc=2, hosts='nodea:1,lost:1', start_timeout=2, **where)"
    done = launch.end(_start_on_hosts(launch, agent, text))
    assert done.code == 1
    assert "RankError: rank did not finish:" in done.stderr
    assert "not all ranks started in time: host lost cannot be reached by ssh" in done.stderr
    assert "ends with: ssh: connect to host lost port 22: No route to host" in done.stderr
