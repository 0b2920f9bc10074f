"""What holds for the elements of a pass under faults: the table of docs/data-service.md, a test a cell.

Every element that the trainers get is counted. Faults come by SIGKILL when part of the pass has been read.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import tensorflow as tf

from tfdist import data_service
from tfdist.errors import ConfigError

FILES, LINES = 16, 100
ELEMENTS = FILES * LINES
BEFORE = 150
SHARDINGS = ("off", "dynamic", "file", "hint")
FIXED = ("file", "hint")
FAULTS = ("no fault", "worker killed", "worker added", "dispatcher killed", "trainer killed")
TRAINER = """
import sys
sys.path.insert(0, sys.argv[1])
import test_guarantee
for element in test_guarantee.read(*sys.argv[2:]):
    print(int(element), flush=True)
"""


def source(folder, sharding):
    paths = sorted(str(path) for path in Path(folder).glob("*.tfrecord"))
    dataset = tf.data.TFRecordDataset(paths)
    if sharding == "hint":
        dataset = dataset.shard(tf.data.experimental.SHARD_HINT, tf.data.experimental.SHARD_HINT)
    return dataset.map(lambda line: tf.strings.to_number(line, tf.int64))


def distributed(folder, sharding, address, job_name=None):
    dataset = source(folder, sharding).map(lambda number: (number, tf.zeros([2000])))
    return data_service.distribute(dataset, address, sharding, job_name=job_name, max_outstanding_requests=2)


def read(folder, sharding, address, job_name=None):
    return (number for number, _ in distributed(folder, sharding, address, job_name))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("records")
    for file in range(FILES):
        with tf.io.TFRecordWriter(str(made / f"{file:02}.tfrecord")) as writer:
            for line in range(LINES):
                writer.write(str(file * LINES + line))
    return made


@pytest.fixture(scope="module")
def clusters():
    """One with workers that come and go, one with fixed ones; each lives through the faults of all its cells."""
    with contextlib.ExitStack() as stack:
        yield functools.cache(
            lambda fixed: stack.enter_context(
                data_service.Cluster(workers=2, fixed_workers=fixed, restarts=len(SHARDINGS) * len(FAULTS))
            )
        )


@pytest.fixture
def cluster(clusters, sharding):
    return clusters(sharding in FIXED)


def pid_of(cluster, address=None):
    found = cluster.survey()
    servers = {worker.address: worker for worker in found.workers}
    return (servers[address] if address else found.dispatcher).status.pid


def rest_of(elements, seconds=60):
    got = []

    def run():
        got.extend(int(element) for element in elements)
        got.append(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert got and got[-1] is None, f"the pass has not ended within {seconds} s; {len(got)} elements came"
    return got[:-1]


def begin(cluster, folder, sharding):
    elements = iter(read(folder, sharding, cluster.address))
    return [int(next(elements)) for _ in range(BEFORE)], elements


def no_fault(cluster, folder, sharding):
    return rest_of(read(folder, sharding, cluster.address))


def worker_killed(cluster, folder, sharding):
    got, elements = begin(cluster, folder, sharding)
    os.kill(pid_of(cluster, cluster.workers[0]), signal.SIGKILL)
    return got + rest_of(elements)


def worker_added(cluster, folder, sharding):
    if sharding in FIXED:
        with pytest.raises(ConfigError, match="cannot add a worker"):
            cluster.add_worker()
        return None
    got, elements = begin(cluster, folder, sharding)
    added = cluster.add_worker()
    got += rest_of(elements)
    cluster.drain(added)
    return got


def dispatcher_killed(cluster, folder, sharding):
    got, elements = begin(cluster, folder, sharding)
    os.kill(pid_of(cluster), signal.SIGKILL)
    return got + rest_of(elements)


def trainer_killed(cluster, folder, sharding):
    job = f"job-{sharding}"
    command = [sys.executable, "-c", TRAINER, str(Path(__file__).parent), str(folder), sharding, cluster.address, job]
    trainer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    got = [int(trainer.stdout.readline()) for _ in range(BEFORE)]
    trainer.kill()
    got += [int(line) for line in trainer.communicate(timeout=10)[0].split()]
    return got + rest_of(read(folder, sharding, cluster.address, job))


RUN = dict(zip(FAULTS, (no_fault, worker_killed, worker_added, dispatcher_killed, trainer_killed), strict=True))
# How often an element comes, fewest and most; under "off" from each of the two workers, and from the added one.
GUARANTEES = {
    "exactly once": (1, 1),
    "at most once": (0, 1),
    "at least once": (1, 1000),
}
TABLE = {
    "off": ("exactly once", "at least once", "exactly once", "exactly once", "at most once"),
    "dynamic": ("exactly once", "at most once", "exactly once", "at most once", "at most once"),
    "file": ("exactly once", "at least once", "refused", "exactly once", "at most once"),
    "hint": ("exactly once", "at least once", "refused", "exactly once", "at most once"),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("sharding", SHARDINGS)
def test_guarantee(cluster, folder, sharding, fault):
    promised = TABLE[sharding][FAULTS.index(fault)]
    got = RUN[fault](cluster, folder, sharding)
    assert (got is None) == (promised == "refused")
    if got is None:
        return
    counts = collections.Counter(got)
    assert set(counts) <= set(range(ELEMENTS))
    sources = (3 if fault == "worker added" else 2) if sharding == "off" else 1
    fewest, most = (sources * bound for bound in GUARANTEES[promised])
    wrong = {number: counts[number] for number in range(ELEMENTS) if not fewest <= counts[number] <= most}
    assert not wrong, f"{promised} of each of {sources}: {wrong}"


def table():
    """The lines of the table in docs/data-service.md."""
    rows = [["sharding", *FAULTS], ["---"] * (1 + len(FAULTS)), *([name, *cells] for name, cells in TABLE.items())]
    return ["| " + " | ".join(row) + " |" for row in rows]


def test_the_document_has_the_table_of_these_tests():
    lines = (Path(__file__).parents[2] / "docs" / "data-service.md").read_text().splitlines()
    begin = lines.index(table()[0])
    assert lines[begin : begin + len(table())] == table()
