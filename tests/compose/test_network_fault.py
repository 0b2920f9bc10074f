"""Containers of compose/train.yaml that are killed, stopped, paused or cut off: the job ends in time and says why."""

import re
import signal

import pytest
from container_fault import Fault

TRAINS = """
import numpy as np, tfdist
tfdist.init()
gradient = np.full(1 << 18, tfdist.rank() + 1, np.float32)
tfdist.allreduce(gradient)
print("the first step is done", flush=True)
while True:
    tfdist.allreduce(gradient)
"""
HOST_TIMEOUT_S = 6
START_TIMEOUT_S = 15
# From the fault: the silence that is borne, 8 s for the other ranks, and the slowness of engine and machine.
BOUND_S = HOST_TIMEOUT_S + 8 + 40


@pytest.fixture
def faulty(project, code, docker, wait_until):
    """Makes a job that trains on two workers, and what can be done to it."""

    def make(**variables):
        job = project(
            "train.yaml",
            CODE=code(TRAINS),
            COMMAND="python train.py",
            TFDIST_HOST_TIMEOUT=str(HOST_TIMEOUT_S),
            LAUNCH_OPTIONS=f"--start-timeout {START_TIMEOUT_S}",
            **variables,
        )
        return job, Fault(docker, job, wait_until)

    return make


def said(docker, job):
    """All that the launcher has said."""
    done = docker("logs", f"{job.name}-launcher-1")
    return done.stdout + done.stderr


def ended(docker, job):
    """The launcher's status, when it has ended by itself; the containers do not end each other here."""
    return int(docker("wait", f"{job.name}-launcher-1", timeout=BOUND_S).stdout)


def start(docker, job, wait_until, sign):
    job("up", "--no-build", "--detach", check=True)
    wait_until(lambda: sign in said(docker, job), seconds=120, what=f"{sign!r} of the launcher")


def is_told(job, worker, how, told):
    """Whether the summary has the lost one of two workers, why, what became of the other, and what to do."""
    name, other = (f"{job.name}-worker-{number}" for number in (worker, 3 - worker))
    summary = re.split(rf"tfdistrun: host {name} with rank {worker - 1} was lost: it (?:{how})\n", told, maxsplit=1)[-1]
    rows = {" ".join(line.split()) for line in summary.splitlines()}
    # Whose connection to the lost one ends has an error of its own.
    ends = (
        f"{2 - worker} {other} {end}"
        # Compose ends the containers of all when one ends.
        for end in ("exit code 1", f"terminated by tfdistrun after host {name} was lost", "killed by SIGTERM")
    )
    well = f"{worker - 1} {name} lost with its host" in rows and not rows.isdisjoint(ends)
    return summary != told and well and f"\nnext: check that host {name} is up" in summary


SILENT = f"has not answered for {HOST_TIMEOUT_S} s (TFDIST_HOST_TIMEOUT)"
# Whichever of its connections the launcher sees end first.
CLOSED = "lost its agent: the process was killed, or the host is gone|closed its connection without a record"
LEFT = "left: its agent was ended by SIGTERM"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("fault", "worker", "how"),
    [("kill", 1, CLOSED), ("stop", 2, LEFT), ("pause", 1, re.escape(SILENT)), ("disconnect", 2, re.escape(SILENT))],
    ids=["kill", "stop", "pause", "disconnect"],
)
def test_the_launcher_tells_of_a_lost_worker(faulty, docker, wait_until, fault, worker, how):
    job, faults = faulty()
    start(docker, job, wait_until, "[0] the first step is done")
    getattr(faults, fault)(f"worker-{worker}")
    assert ended(docker, job) == 1
    told = said(docker, job)
    assert is_told(job, worker, how, told), told
    others = [f"worker-{3 - worker}"]
    if fault == "pause":
        faults.unpause(f"worker-{worker}")
    if fault in ("pause", "disconnect"):
        others.append(f"worker-{worker}")
    for other in others:
        wait_until(lambda name=other: not faults.ranks(name), seconds=BOUND_S, what=f"no rank on {other}")


def test_the_launcher_tells_that_it_has_lost_its_own_network(faulty, docker, wait_until):
    job, faults = faulty()
    start(docker, job, wait_until, "[0] the first step is done")
    faults.disconnect("launcher-1")
    assert ended(docker, job) == 1
    told = said(docker, job)
    for number in (1, 2):
        assert f"host {job.name}-worker-{number} with rank {number - 1} was lost: it {SILENT}" in told
        wait_until(lambda name=f"worker-{number}": not faults.ranks(name), seconds=BOUND_S, what=f"no rank on {number}")
    assert "next: all other hosts were lost at the same time: check the network of this machine" in told


@pytest.mark.parametrize(
    ("fault", "late"), [("kill", False), ("kill", True), ("disconnect", True)], ids=["kill", "kill-crew", "cut-crew"]
)
def test_a_worker_is_lost_while_the_ranks_start(faulty, docker, wait_until, fault, late):
    """About when its agent dials the launcher, or when that has started what supervises the rank."""
    job, faults = faulty()
    start(docker, job, wait_until, "tfdist-launcher: 2 ranks on")
    if late:
        told = f"tfdist agent: {job.name}-worker-2 runs rank 1 of 2"
        wait_until(lambda: told in docker("logs", f"{job.name}-worker-2").stderr, seconds=60, what="the crew")
    getattr(faults, fault)("worker-2")
    assert ended(docker, job) == 1
    last = said(docker, job)
    missing = f"waited {START_TIMEOUT_S} s for agents at "
    if late:  # its supervisor may have come, or not yet
        slow = "not all ranks started in time" in last and f"the agents on {job.name}-worker-2 have printed" in last
        assert f"host {job.name}-worker-2 " in last or (fault == "disconnect" and slow)
    else:
        came = f"1 of 2 ({job.name}-worker-1) came"
        assert f"host {job.name}-worker-2 " in last or (missing in last and came in last)
    wait_until(lambda: not faults.ranks("worker-1"), seconds=BOUND_S, what="no rank on worker-1")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("fault", "how"), [("kill", CLOSED), ("pause", re.escape(SILENT))], ids=["kill", "pause"])
def test_the_documented_command_shows_it_too(faulty, wait_until, tmp_path, fault, how):
    job, faults = faulty()
    log = tmp_path / "log"
    with job.started(log, "--exit-code-from", "launcher") as process:
        wait_until(lambda: "[0] the first step is done" in log.read_text(), seconds=120, what="the ranks")
        getattr(faults, fault)("worker-2")
        status = process.wait(BOUND_S)
    told = re.sub(r"^launcher-1 +\| ", "", log.read_text(), flags=re.MULTILINE)
    if fault == "kill" and status == 128 + signal.SIGTERM:
        # Where a container ends, compose ends the launcher too, which may hear of that before it sees the lost host.
        assert "interrupted by SIGTERM" in told
    else:
        assert status == 1
        assert is_told(job, 2, how, told), told
    states = job("ps", "--all", "--format", "{{.State}}", check=True).stdout.split()
    assert states == ["exited"] * 3


def test_a_job_that_failed_can_be_started_again(faulty, docker, wait_until):
    job, faults = faulty()
    start(docker, job, wait_until, "[0] the first step is done")
    faults.kill("worker-2")
    assert ended(docker, job) == 1
    docker("wait", f"{job.name}-worker-1", timeout=BOUND_S)  # `up` would take it for one that is ready
    job("up", "--no-build", "--detach", check=True)
    done = "[0] the first step is done\n"
    wait_until(lambda: said(docker, job).count(done) == 2, seconds=120, what="a job that trains again")


def test_workers_end_after_a_launcher_that_is_killed(faulty, docker, wait_until):
    job, faults = faulty()
    start(docker, job, wait_until, "[0] the first step is done")
    faults.kill("launcher-1")
    names = [f"{job.name}-worker-{number}" for number in (1, 2)]
    assert docker("wait", *names, timeout=BOUND_S).stdout.split() == ["1", "1"]
    assert "is gone; ending the ranks of this host" in docker("logs", names[0]).stderr
