"""An elastic job on hosts whose agents are lost, come while it runs, and are told to leave."""

from __future__ import annotations

import os
import re
import signal
from typing import Any

import pytest
from company import Company
from machine import FIRST, LAUNCHER, SECOND, Machines

pytestmark = [pytest.mark.starter("as given"), pytest.mark.slice("hosts")]

# Adds up how many ranks took part, until somebody says that it is enough.
TRAINS = """\
import tensorflow as tf, tfdist
tfdist.init()

@tfdist.elastic.run
def train(state):
    said = ("size", tfdist.size(), "pid", os.getpid(), "on", socket.gethostname(), "step", state.step)
    print(*said, file=sys.stderr, flush=True)
    while not tfdist.allreduce(float(os.path.exists("enough")), op=tfdist.Max):
        assert float(tfdist.allreduce(1.0, op=tfdist.Sum)) == tfdist.size()
        state.step += 1
        state.commit()
    return state.step

steps = {int(step) for step in tfdist.allgather_object(train(tfdist.elastic.ObjectState(step=0)))}
print("all have", *steps, flush=True)
"""
SIZE = re.compile(r"size (\d+) pid (\d+) on (\S+) step (\d+)")


@pytest.fixture
def company(machines: Machines, launch: Any, wait_until: Any) -> Company:
    made = Company(machines, launch, wait_until)
    made.wait_for_hosts()
    return made


def test_agents_leave_and_come_while_a_job_runs(company: Company, wait_until: Any) -> None:
    company.key()
    company.script(TRAINS)
    first, second = (company.agent(address, slots=1) for address in (FIRST, SECOND))
    job = company.launcher("-np", "2", "--elastic")

    def last(size: int, steps: int = 0) -> dict[str, list[str]]:
        """The processes of the last list of ranks, by host; waits until there is one of that size."""
        found: list[Any] = []

        def is_there() -> bool:
            found[:] = [each for each in SIZE.findall(company.launch.said(job)) if int(each[3]) > steps][-size:]
            return len(found) == size and {each[0] for each in found} == {str(size)}

        wait_until(is_there, seconds=120, what=f"{size} ranks in {company.launch.said(job)[-2000:]}")
        return {host: [each[1] for each in found if each[2] == host] for _, _, host, _ in found} | {
            "step": [found[0][3]]
        }

    both = last(2, -1)
    survivor = both["node-2"]

    # An agent is killed, and with it its rank.
    os.kill(company.agent_of(SECOND), signal.SIGKILL)
    alone = last(1)
    assert alone["node-2"] == survivor
    assert company.launch.end(second).code != 0

    # Another one comes, to a host of that name.
    late = company.agent(SECOND, slots=1)
    again = last(2, int(alone["step"][0]))
    assert again["node-2"] == survivor
    assert again["node-3"] != both["node-3"]

    # It is told to leave: its rank does so at a commit.
    os.kill(company.agent_of(SECOND), signal.SIGTERM)
    alone = last(1, int(again["step"][0]))
    assert alone["node-2"] == survivor
    ended = company.launch.end(late)
    assert ended.code == 128 + signal.SIGTERM
    assert "SIGTERM: the ranks of this host leave at their next commit" in ended.stderr

    # And one from a host that has one already.
    third = company.agent(FIRST, slots=1)
    last(2, int(alone["step"][0]))
    (company.launch.folder / "enough").touch()
    done = company.launch.end(job)
    assert done.code == 0, done.stderr
    assert len(set(re.findall(r"all have (\d+)$", done.stdout, re.MULTILINE))) == 1
    assert "an agent has come from node-2-2 (" in done.stderr
    assert "restarting" not in done.stderr
    assert [company.launch.end(each).code for each in (first, third)] == [0, 0]
    company.nothing_is_left(FIRST, SECOND, LAUNCHER)
