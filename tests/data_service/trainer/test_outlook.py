"""What a trainer and its dispatcher tell each other."""

import contextlib
import logging
import threading

import pytest
import tensorflow as tf

from tfdist import data_service
from tfdist.data_service.inspection.address import ServiceAddress
from tfdist.data_service.inspection.control_client import fetch
from tfdist.data_service.inspection.survey import Server, Survey
from tfdist.data_service.inspection.wait_report import parse
from tfdist.data_service.trainer import outlook
from tfdist.data_service.trainer.wait_meter import WaitMeter

BRIEF_S = 0.2


@pytest.mark.parametrize(
    ("states", "texts"),
    [
        ({"a:1": "ready"}, [""]),
        ({}, ["No worker has registered", "--dispatcher h:5"]),
        ({"a:1": "dead", "b:1": "ready"}, ["Of 2 workers these are dead: a:1.", "1 are ready"]),
        ({"a:1": "unknown", "b:1": "drained"}, ["do not report their status: a:1 (why)", "1 are ready"]),
    ],
)
def test_note(states, texts):
    workers = tuple(Server(address, state, None, "why") for address, state in states.items())
    note = outlook.note_on(Survey("h:5", Server("h:5", "ready", None), workers))
    assert all(text in note for text in texts)
    assert bool(note) == bool(texts[0])


def test_names_differ_and_are_accepted():
    names = {outlook.own_name() for _ in range(4)}
    assert len(names) > 1
    for name in names:
        assert parse(f'{{"trainer": "{name}", "share": 0, "measured_at": "input"}}'.encode()).trainer == name


def test_a_trainer_tells_how_long_it_waits(service, wait_until):
    """One reads at the service's end, then through `measure_wait`; where nothing is read nothing is told."""
    address = ServiceAddress.parse(service)
    reporter = outlook.Reporter(address, "me:1", WaitMeter(BRIEF_S))

    def told():
        reporter.tell()
        return {wait.trainer: wait for wait in fetch(address, 5).trainers}.get("me:1")

    distributed = data_service.distribute(tf.data.Dataset.range(100_000).repeat(), service)
    assert told() is None
    elements = iter(distributed)
    wait_until(lambda: next(elements) is not None and told(), seconds=20, what="a report")
    assert told().measured_at == "service" and 0 < told().share <= 1
    measured = iter(data_service.measure_wait(distributed.batch(2).prefetch(2)))
    wait_until(lambda: next(measured) is not None and told().measured_at == "input", seconds=20, what="its own end")


def test_continues_without_a_listener_and_warns_once(dispatcher, caplog, monkeypatch):
    address = dispatcher.service
    nobody = ServiceAddress("127.0.0.1", 1, 2)
    monkeypatch.setattr(outlook.wait, "sample", lambda service, now: None)

    class Always:
        def add(self, sample):
            return 0.5, "input"

    outlook.Reporter(nobody, "me:1", Always()).tell()
    monkeypatch.setattr(dispatcher._waits, "_most", 0)
    full = outlook.Reporter(address, "me:1", Always())
    with caplog.at_level(logging.WARNING, "tfdist"):
        full.tell()
        full.tell()
    assert sum("too many trainers" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize("main_is_alive", [True, False])
def test_it_ends_without_a_word_with_its_process(main_is_alive, monkeypatch):
    def refuse(service):
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    monkeypatch.setattr(outlook, "look_at", refuse)
    monkeypatch.setattr(outlook.threading.main_thread(), "is_alive", lambda: main_is_alive, raising=False)
    with pytest.raises(RuntimeError) if main_is_alive else contextlib.nullcontext():
        outlook._run(ServiceAddress("127.0.0.1", 1, 2), 5.0)


def test_distribute_begins_to_tell(service, monkeypatch):
    began = threading.Event()
    monkeypatch.setattr(outlook, "_watched", set())
    monkeypatch.setattr(outlook, "_run", lambda *_: began.set())
    data_service.distribute(tf.data.Dataset.range(3), service)
    assert began.wait(10)
