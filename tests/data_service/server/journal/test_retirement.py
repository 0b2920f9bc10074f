"""Training goes on without workers that were drained."""

import json
import threading
from types import SimpleNamespace

import pytest
import tensorflow as tf

from tfdist import data_service
from tfdist.data_service.inspection.survey import Server, Survey
from tfdist.data_service.server.journal import retirement
from tfdist.data_service.server.journal.retirement import LEAVING_FILE, Caretaker, leaving_after
from tfdist.errors import ConfigError

A, B = "a:1", "b:1"


def server(address, state, started=None):
    """As a survey finds it; one that tells nothing has not told when it started."""
    return Server(address, state, None if started is None else SimpleNamespace(started=started))


@pytest.mark.parametrize(
    ("before", "found", "after"),
    [
        ({}, [(A, "ready", 1.0), (B, "ready", 1.0)], {}),
        ({}, [(A, "draining", 1.0), (B, "ready", 1.0)], {}),
        ({}, [(A, "drained", 1.0), (B, "ready", 1.0)], {A: 1.0}),
        ({A: 1.0}, [(A, "dead"), (B, "ready", 1.0)], {A: 1.0}),
        ({A: 1.0}, [(A, "drained"), (B, "dead")], {A: 1.0}),
        ({A: 1.0}, [(A, "unknown")], {A: 1.0}),
        ({A: 1.0}, [(A, "starting", 2.0)], {A: 1.0}),
        ({A: 1.0}, [(A, "ready", 2.0)], {}),
        ({A: 1.0}, [(A, "drained", 2.0)], {A: 2.0}),
        ({A: 1.0}, [], {A: 1.0}),
        ({}, [(A, "dead")], {}),
        ({A: 1.0}, [(B, "drained", 2.0)], {A: 1.0, B: 2.0}),
    ],
)
def test_who_is_leaving(before, found, after):
    assert leaving_after(before, [server(*worker) for worker in found]) == after


def test_a_worker_does_not_leave_in_the_name_of_one_before_it(dispatcher, worker_of, monkeypatch):
    """The dispatcher had looked at it when it was ready, and takes note of that after its drain."""
    worker = worker_of(dispatcher)
    leaving = {worker.address: worker.status().started - 1}
    told = Server(dispatcher.address, "ready", SimpleNamespace(leaving=leaving))
    monkeypatch.setattr("tfdist.data_service.server.server.look", lambda *_: told)
    assert not worker._is_noted()
    leaving[worker.address] += 1
    assert worker._is_noted()


def elements(service, count):
    dataset = data_service.distribute(tf.data.Dataset.range(count), service)
    return sorted(int(element) for element in dataset)


def test_later_passes_do_not_wait_for_a_worker_that_drained(dispatcher, worker_of, wait_until):
    leaving, staying = worker_of(dispatcher), worker_of(dispatcher)
    assert elements(dispatcher.address, 40) == list(range(40))
    assert leaving.drain(30) == ""
    leaving.stop()
    got = []
    thread = threading.Thread(target=lambda: got.extend(elements(dispatcher.address, 50)), daemon=True)
    thread.start()
    wait_until(lambda: not thread.is_alive(), seconds=30, what="a pass without the worker that drained")
    assert got == list(range(50))
    found = data_service.survey(str(dispatcher.service))
    assert {item.address: item.state for item in found.workers} == {
        leaving.address: "drained",
        staying.address: "ready",
    }


def test_a_worker_that_comes_back_is_no_longer_leaving(dispatcher, worker_of, wait_until):
    worker = worker_of(dispatcher)
    assert worker.drain(30) == ""
    assert dispatcher.status().leaving == {worker.address: worker.status().started}
    worker.stop()
    worker_of(dispatcher, port=worker.service.port)
    wait_until(lambda: dispatcher.status().leaving == {}, seconds=10, what="the return of the worker")


@pytest.mark.parametrize(("state", "answers"), [("starting", False), ("unknown", False), ("drained", True)])
def test_worker_at_a_drained_address_keeps_its_tasks(dispatcher, monkeypatch, state, answers):
    """It began while the others were asked."""
    finished = []
    caretaker = Caretaker(dispatcher.address, None)
    caretaker.stop()
    caretaker._leaving = {"127.0.0.1:7010": 1.0}
    monkeypatch.setattr(retirement.DispatcherClient, "tasks", lambda self, worker: (4, 5))
    monkeypatch.setattr(retirement.DispatcherClient, "finish", lambda self, worker, tasks: finished.extend(tasks))
    monkeypatch.setattr(retirement, "look", lambda address, _: Server(address.grpc, state, None))
    before = Server("127.0.0.1:7010", "drained", None)
    caretaker._look(Survey(dispatcher.address, Server(dispatcher.address, "ready", None), (before,)))
    assert finished == ([4, 5] if answers else [])


def test_it_is_remembered_across_a_restart_of_the_dispatcher(tmp_path, worker_of):
    config = data_service.DispatcherConfig(host="127.0.0.1", work_dir=str(tmp_path), fault_tolerant=True)
    with data_service.Dispatcher(config) as first:
        worker = worker_of(first)
        assert worker.drain(30) == ""
    assert json.loads((tmp_path / LEAVING_FILE).read_text()) == {worker.address: worker.status().started}
    worker.stop()
    with data_service.Dispatcher(config) as second:
        assert list(second.status().leaving) == [worker.address]


def test_what_could_not_be_written_is_written_later(dispatcher, tmp_path, monkeypatch):
    caretaker, tries = Caretaker(dispatcher.address, tmp_path), []
    caretaker.stop()
    write = retirement.write_atomically

    def write_at_last(*given):
        tries.append(1)
        if len(tries) == 1:
            raise OSError("no space")
        write(*given)

    monkeypatch.setattr(retirement, "write_atomically", write_at_last)
    gone = Server("127.0.0.1:7010", "drained", None)
    found = Survey(dispatcher.address, Server(dispatcher.address, "ready", None), (gone,))
    monkeypatch.setattr(retirement, "leaving_after", lambda before, workers: {gone.address: 1.0})
    with pytest.raises(OSError, match="no space"):
        caretaker._look(found)
    assert caretaker.leaving == {}
    caretaker._look(found)
    assert json.loads((tmp_path / LEAVING_FILE).read_text()) == caretaker.leaving == {gone.address: 1.0}


def test_a_broken_memory_is_named(tmp_path):
    (tmp_path / LEAVING_FILE).write_text("{")
    with pytest.raises(ConfigError, match=f"{LEAVING_FILE} cannot be read"):
        Caretaker("127.0.0.1:1", str(tmp_path))
