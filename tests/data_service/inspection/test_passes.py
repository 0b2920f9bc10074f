"""What is being read, by what workers and dispatcher tell; and from two workers that run."""

import json

import pytest
import tensorflow as tf

from tfdist import data_service
from tfdist.data_service.inspection import passes
from tfdist.data_service.inspection.address import ServiceAddress
from tfdist.data_service.inspection.dispatcher_client import DispatcherClient, TaskTold, WorkerClient
from tfdist.data_service.inspection.passes import Pass, Reading, gather, read
from tfdist.data_service.inspection.survey import DEAD, READY, Server, Survey, survey
from tfdist.errors import PeerLostError

TOLD = {7: TaskTold(7, "1000", "dynamic"), 9: TaskTold(9, "mine", "off")}


def test_tasks_are_gathered_by_their_pass():
    tasks = {"b:1": {10: 9, 11: 7, 12: 9}, "a:1": {13: 7}, "idle:1": {}}
    assert gather(tasks, TOLD, {"9": ("valid", 3), "8": ("other", 1)}) == (
        Pass(7, "1000", "dynamic", {"b:1": 1, "a:1": 1}),
        Pass(9, "mine", "off", {"b:1": 2}, "valid", 3),
    )


def test_a_pass_that_nobody_describes_is_still_there():
    assert gather({"a:1": {1: 8}}, TOLD, {}) == (Pass(8, "", "", {"a:1": 1}),)
    assert gather({}, TOLD, {"7": ("train", 1)}) == ()


class Asked:
    """A dispatcher that answers as TensorFlow's does, and remembers what it was asked."""

    def __init__(self, tasks):
        self.tasks, self.asked = tasks, []

    def describe(self, worker, known):
        self.asked.append((worker, tuple(known)))
        hidden = set(known)
        return tuple(TOLD[number] for task, number in self.tasks[worker].items() if task not in hidden)


def test_no_pass_is_asked_for_twice():
    tasks = {"a:1": {1: 7, 2: 7}, "b:1": {3: 7}, "c:1": {4: 7, 5: 9}}
    dispatcher = Asked(tasks)
    assert passes._describe(dispatcher, tasks) == TOLD
    assert dispatcher.asked == [("a:1", (1,)), ("c:1", (4,))]


def test_as_json():
    reading = Reading((Pass(7, "1000", "dynamic", {"a:1": 2}, "train", 4),), {"b:1": "gone"})
    assert json.loads(json.dumps(passes.describe(reading))) == {
        "passes": [
            {
                "pass": 7,
                "job": "train",
                "repetition": 4,
                "dataset": "1000",
                "sharding": "dynamic",
                "tasks": {"a:1": 2},
            }
        ],
        "silent": {"b:1": "gone"},
    }


def look(dispatcher):
    return read(survey(dispatcher.service), dispatcher.service, 5)


def test_what_two_workers_run(dispatcher, worker_of, wait_until):
    workers = [worker_of(dispatcher) for _ in range(2)]
    assert look(dispatcher) == Reading((), {})
    ids = [
        data_service.register(tf.data.Dataset.range(1 << size), str(dispatcher.service), sharding=sharding)
        for size, sharding in ((40, "dynamic"), (41, "off"))
    ]
    readers = [
        iter(data_service.from_id(name, str(dispatcher.service), sharding=sharding))
        for name, sharding in zip(ids, ("dynamic", "off"), strict=True)
    ]
    for reader in readers:
        next(reader)
    wait_until(lambda: [len(one.tasks) for one in look(dispatcher).passes] == [2, 2], what="two tasks of two passes")
    reading = look(dispatcher)
    assert [(one.dataset, one.sharding) for one in reading.passes] == [(ids[0], "dynamic"), (ids[1], "off")]
    assert all(one.tasks == {worker.address: 1 for worker in workers} for one in reading.passes)
    # Asking in a worker's name must not take its tasks from it.
    assert look(dispatcher) == reading
    for reader in readers:
        next(reader)


def test_silent_worker_is_named_and_a_dead_one_not_asked(dispatcher):
    # Nothing listens at port 9.
    found = Survey("", Server("", READY, None), (Server("127.0.0.1:9", READY, None), Server("127.0.0.1:7", DEAD, None)))
    reading = read(found, dispatcher.service, 2)
    assert reading.passes == ()
    assert list(reading.silent) == ["127.0.0.1:9"]
    assert "the worker at 127.0.0.1:9 does not answer GetWorkerTasks" in reading.silent["127.0.0.1:9"]
    with DispatcherClient(dispatcher.address, 5) as client:
        assert client.workers() == ()


def test_no_dispatcher():
    found = Survey("", Server("", READY, None), (Server("127.0.0.1:9", READY, None),))
    tasks = {"127.0.0.1:9": {1: 7}}
    with DispatcherClient("127.0.0.1:9", 2) as client, pytest.raises(PeerLostError, match="WorkerHeartbeat"):
        passes._describe(client, tasks)
    assert read(found, ServiceAddress("127.0.0.1", 9, 10), 2).passes == ()


def test_a_worker_tells_the_passes_of_its_tasks(dispatcher, worker_of):
    worker = worker_of(dispatcher)
    with WorkerClient(worker.address, 5) as client:
        assert client.tasks() == {}
        reader = iter(data_service.distribute(tf.data.Dataset.range(1 << 40), str(dispatcher.service)))
        next(reader)
        (task,) = client.tasks()
    with DispatcherClient(dispatcher.address, 5) as client:
        assert client.tasks(worker.address) == (task,)
        assert client.describe(worker.address, [task]) == ()
        (told,) = client.describe(worker.address, [])
    assert told.sharding == "dynamic"
