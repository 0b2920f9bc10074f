"""Servers that are kept running. A small script plays the server, so that a start takes no time."""

import os
import signal
import sys
import time

import pytest

from tfdist.data_service.process.restart import RestartPolicy
from tfdist.data_service.process.supervisor import ENDED, FAILED, READY, Supervisor

PLAYER = """
import json, os, signal, sys, time
order = json.loads(sys.stdin.readline())
config = order["config"]
def report(**fields):
    os.write(1, json.dumps(fields).encode() + b"\\n")
def terminate(*_):
    report(draining="here")
    if "dies" in config and not os.path.exists(config["dies"]):
        open(config["dies"], "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(config.get("drain_status", 0))
signal.signal(signal.SIGTERM, terminate)
print("hello", config, "no end of line", sep="\\n", end="", file=sys.stderr, flush=True)
if "refuse" in config:
    report(error=config["refuse"])
    sys.exit(3)
report(ready="127.0.0.1:%d/%d" % (config.get("port") or 7000 + config["number"], config.get("control_port") or 7500))
if "crash" in config:
    sys.exit(config["crash"])
sys.stdin.read()
os._exit(0)
"""
PLAYED = (sys.executable, "-I", "-c", PLAYER)
POLICY = RestartPolicy(limit=2, window_s=60, first_s=0.01, longest_s=0.02)


@pytest.fixture
def made():
    lines = []
    supervisor = Supervisor(POLICY, 5.0, lines.append, PLAYED)
    supervisor.lines = lines
    yield supervisor
    supervisor.end()


def run(supervisor, condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, supervisor.lines
        supervisor.step(0.2)


def test_each_gets_its_order_and_tells_where_it_is(made):
    members = [made.add(f"worker-{number}", "worker", {"number": number}) for number in range(3)]
    run(made, lambda: all(member.state == READY for member in members))
    assert [member.service for member in members] == [f"127.0.0.1:{7000 + number}/7500" for number in range(3)]
    assert [member.address for member in members] == [f"127.0.0.1:{7000 + number}" for number in range(3)]


def test_lines_carry_the_name(made):
    members = [made.add(f"worker-{number}", "worker", {"number": number}) for number in range(2)]
    run(made, lambda: all(member.state == READY for member in members))
    for number in range(2):
        assert f"[worker-{number}] {{'number': {number}}}" in made.lines
    assert not any("end of line" in line for line in made.lines)
    made.terminate(members[1])
    run(made, lambda: members[1].over)
    assert "[worker-1] no end of line" in made.lines
    assert "[worker-0] no end of line" not in made.lines


def test_one_that_is_killed_starts_again_at_its_address(made):
    other, member = (made.add(f"worker-{number}", "worker", {"number": number}) for number in range(2))
    run(made, lambda: READY == member.state == other.state)
    first, kept = member.process.pid, other.process.pid
    os.kill(first, signal.SIGKILL)
    run(made, lambda: member.restarts == 1 and member.state == READY)
    assert member.process.pid != first
    assert other.process.pid == kept
    assert member.config["port"] == 7001 and member.config["control_port"] == 7500
    assert member.service == "127.0.0.1:7001/7500"
    assert any(line.startswith("[worker-1] was killed by signal 9; ") for line in made.lines)


def test_one_that_fails_too_often_stays_away(made):
    member = made.add("worker-0", "worker", {"number": 0, "crash": 5})
    run(made, lambda: member.over)
    assert (member.state, member.restarts, member.code) == (FAILED, 2, 5)
    assert made.lines[-1].startswith("[worker-0] ended with status 5; ") and "3 times" in made.lines[-1]


def test_one_that_refuses_to_start_is_not_started_again(made):
    member = made.add("worker-0", "worker", {"number": 0, "refuse": "no such key file"})
    run(made, lambda: member.over)
    assert (member.state, member.restarts, member.detail) == (FAILED, 0, "no such key file")


@pytest.mark.parametrize("status", [0, 1])
def test_one_that_drains_is_not_started_again(made, status):
    member = made.add("worker-0", "worker", {"number": 0, "drain_status": status})
    run(made, lambda: member.state == READY)
    made.terminate(member)
    run(made, lambda: member.over)
    assert (member.state, member.code, member.restarts) == (ENDED, status, 0)


@pytest.mark.parametrize(("end_key", "end"), [("", ""), ("Ctrl-C", "; Ctrl-C again")])
def test_drain_line_says_how_long_and_what_ends_it(end_key, end):
    lines = []
    supervisor = Supervisor(POLICY, 5.0, lines.append, PLAYED, end_key)
    supervisor.lines = lines
    member = supervisor.add("worker-0", "worker", {"number": 0})
    run(supervisor, lambda: member.state == READY)
    supervisor.terminate(member)
    run(supervisor, lambda: member.over)
    supervisor.end()
    (line,) = (line for line in supervisor.lines if line.startswith("[worker-0] draining: "))
    _, limit, rest = line.partition("for at most 5 s")
    assert limit and rest.startswith(end) and bool(rest) == bool(end)


def test_one_that_dies_while_it_drains_comes_back_and_drains(made, tmp_path):
    member = made.add("worker-0", "worker", {"number": 0, "dies": str(tmp_path / "died")})
    run(made, lambda: member.state == READY)
    made.terminate(member)
    run(made, lambda: member.over)
    assert (member.state, member.code, member.restarts) == (ENDED, 0, 1)
    assert "killed by signal 9" in member.lost and "lost" in member.lost


def test_a_dispatcher_that_dies_while_it_ends_has_ended(made, tmp_path):
    member = made.add("dispatcher", "dispatcher", {"number": 0, "dies": str(tmp_path / "died")})
    run(made, lambda: member.state == READY)
    made.terminate(member)
    run(made, lambda: member.over)
    assert (member.state, member.restarts) == (ENDED, 0)


def test_one_that_waits_for_its_restart_can_be_ended():
    lines = []
    slow = RestartPolicy(limit=2, window_s=60, first_s=50, longest_s=50)
    supervisor = Supervisor(slow, 5.0, lines.append, PLAYED)
    supervisor.lines = lines
    member = supervisor.add("worker-0", "worker", {"number": 0, "crash": 1})
    run(supervisor, lambda: member.state == "waiting")
    supervisor.terminate(member)
    assert member.state == "waiting"  # once it is back it drains
    supervisor.terminate(member)
    assert member.state == ENDED
    supervisor.end()


def test_watched_descriptors(made):
    reader, writer = os.pipe()
    got = []
    made.watch(reader, lambda: got.append(os.read(reader, 10)))
    os.write(writer, b"x")
    run(made, lambda: got)
    made.ignore(reader)
    os.write(writer, b"y")
    made.step(0)
    assert got == [b"x"]
    os.close(reader)
    os.close(writer)


def test_the_end_leaves_nobody():
    supervisor = Supervisor(POLICY, 5.0, print, PLAYED)
    supervisor.lines = []
    members = [supervisor.add(f"worker-{number}", "worker", {"number": number}) for number in range(2)]
    run(supervisor, lambda: all(member.state == READY for member in members))
    pids = [member.process.pid for member in members]
    supervisor.end()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
