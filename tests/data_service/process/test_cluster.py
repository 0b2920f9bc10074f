"""The embedded cluster end to end: servers that are killed, added, drained; and nothing left, whoever dies."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import tensorflow as tf

from tfdist import data_service
from tfdist.errors import ConfigError, PeerLostError

OWNER = """
import sys, threading
from tfdist import data_service
cluster = data_service.Cluster(workers=1)
print(cluster._manager.pid, *(server.status.pid for server in (cluster.survey().dispatcher, *cluster.survey().workers)))
sys.stdout.flush()
threading.Event().wait(100)
"""


@pytest.fixture(scope="module")
def cluster():
    with data_service.Cluster(workers=2, restarts=3) as made:
        yield made


def elements(cluster, count):
    return sorted(int(x) for x in data_service.distribute(tf.data.Dataset.range(count), cluster.address))


def in_time(function, *arguments, seconds=60):
    """The function's result; a wait without end must fail the test, not hang it."""
    got = []
    thread = threading.Thread(target=lambda: got.append(function(*arguments)), daemon=True)
    thread.start()
    thread.join(seconds)
    assert got, f"no result within {seconds} s"
    return got[0]


def statuses(cluster):
    found = cluster.survey()
    return {server.address: server.status for server in (found.dispatcher, *found.workers) if server.status}


def parts_held(cluster):
    return [worker.status.counters["tasks"] for worker in cluster.survey().workers if worker.status]


def gone(pids):
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_all_are_ready_and_deliver(cluster):
    found = cluster.survey()
    assert sorted(worker.address for worker in found.workers) == sorted(cluster.workers)
    assert {worker.state for worker in found.workers} == {"ready"}
    assert found.dispatcher.status.work_dir_token
    assert in_time(elements, cluster, 50) == list(range(50))


def test_a_killed_worker_comes_back_at_its_address(cluster, wait_until):
    address = cluster.workers[0]
    before = statuses(cluster)[address].pid
    os.kill(before, signal.SIGKILL)
    # It held nothing when it was killed, so nothing is lost; and its task ends, though it is away for seconds.
    assert in_time(elements, cluster, 40) == list(range(40))
    wait_until(lambda: address in statuses(cluster) and statuses(cluster)[address].pid != before, what="its return")
    assert in_time(elements, cluster, 60) == list(range(60))


@pytest.mark.slice("data-service")
def test_a_killed_dispatcher_comes_back_and_the_pass_goes_on(cluster):
    iterator = iter(data_service.distribute(tf.data.Dataset.range(70), cluster.address))
    got = [int(next(iterator))]
    os.kill(cluster.survey().dispatcher.status.pid, signal.SIGKILL)
    got += in_time(lambda: [int(element) for element in iterator])
    # A part that was written down and not yet handed out goes with the dispatcher, of each worker at most one.
    assert len(set(got)) == len(got) >= 70 - len(cluster.workers)


@pytest.mark.slice("data-service")
def test_workers_are_added_and_drained(cluster, wait_until):
    added = cluster.add_worker()
    assert added in cluster.workers and len(cluster.workers) == 3
    assert in_time(elements, cluster, 80) == list(range(80))
    leaving = cluster.workers[1]
    in_time(cluster.drain, leaving)
    assert leaving not in cluster.workers
    assert in_time(elements, cluster, 90) == list(range(90))
    states = {worker.address: worker.state for worker in cluster.survey().workers}
    assert states[leaving] == "drained" and states[added] == "ready"
    assert cluster.failed == {}
    in_time(cluster.drain, leaving)  # it has, and nothing happens
    # A worker holds its part of a pass for a moment after the last element.
    wait_until(lambda: not any(parts_held(cluster)), what="the end of the pass")
    assert in_time(cluster.add_worker) == leaving  # no pass goes on that it would have no part in
    assert cluster.workers[-1] == leaving and len(cluster.workers) == 3
    assert in_time(elements, cluster, 95) == list(range(95))


def test_what_was_answered_is_forgotten(cluster):
    assert set(cluster._answers) == {0}


def test_only_a_worker_that_runs_can_be_drained(cluster):
    with pytest.raises(ConfigError, match=r"worker must be one of .*; received 'h:1'"):
        cluster.drain("h:1")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"workers": 0}, "workers must be 1"),
        ({"restarts": -1}, "restarts"),
        ({"autoscale": "3"}, "MIN:MAX"),
        ({"autoscale": 3}, "a ScalePolicy or None; received 3"),
        ({"workers": 4, "autoscale": "1:3"}, "from 1 to 3 workers .* received workers=4"),
        ({"autoscale": "1:3", "fixed_workers": True}, "mutually exclusive"),
    ],
)
def test_bad_settings_start_nothing(settings, text):
    with pytest.raises(ConfigError, match=text):
        data_service.Cluster(**settings)


@pytest.mark.slice("data-service")
def test_nothing_is_left_when_the_owner_is_killed(wait_until):
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    pids = [int(word) for word in owner.stdout.readline().split()]
    assert len(pids) == 3
    owner.kill()
    owner.communicate(timeout=10)
    wait_until(lambda: gone(pids), seconds=10, what="the end of the manager and its servers")


def test_killed_manager_leaves_nothing_and_is_reported(cluster, wait_until):
    """The last of this file: it ends the cluster of the others."""
    pids = [status.pid for status in statuses(cluster).values()]
    assert len(pids) == 1 + len(cluster.workers)
    cluster._manager.kill()
    wait_until(lambda: gone(pids), seconds=10, what="the end of the servers")
    with pytest.raises(PeerLostError, match="has ended"):
        cluster.add_worker()
    cluster.stop()
    cluster.stop()
