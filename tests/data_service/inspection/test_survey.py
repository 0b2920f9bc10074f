"""Who is there, seen from outside."""

import contextlib
import json
import socket
import threading
import time

import pytest

from tfdist import data_service
from tfdist.data_service.inspection import survey as module
from tfdist.data_service.inspection.address import ServiceAddress
from tfdist.data_service.inspection.control_client import plain, request
from tfdist.data_service.inspection.status import Status
from tfdist.data_service.inspection.survey import at_once, describe, look, meet, survey
from tfdist.data_service.server.port import take
from tfdist.errors import ConfigError, PeerLostError


def test_a_service_with_its_workers(dispatcher, worker_of):
    ready, dead = worker_of(dispatcher), worker_of(dispatcher)
    hidden = worker_of(dispatcher, control_port=0)
    dead.stop()
    found = survey(str(dispatcher.service), 5)
    states = {worker.address: worker.state for worker in found.workers}
    assert states == {ready.address: "ready", dead.address: "dead", hidden.address: "unknown"}
    assert found.dead == (dead.address,)
    assert found.dispatcher.state == "ready"
    assert found.dispatcher.status.counters["workers"] == 3
    (told,) = [worker.status for worker in found.workers if worker.address == ready.address]
    assert (told.role, told.counters) == ("worker", {"tasks": 0})


def test_dispatcher_at_another_control_port_has_a_remedy():
    with data_service.Dispatcher(data_service.DispatcherConfig(host="127.0.0.1", control_port=0)) as dispatcher:
        found = survey(dispatcher.address, 5).dispatcher
        assert found.state == "unknown" and found.detail.endswith(f", write {dispatcher.address}/CONTROL")
        assert meet(ServiceAddress.parse(dispatcher.address), 5).detail.endswith("/CONTROL")
        assert survey(str(dispatcher.service), 5).dispatcher.state == "ready"
        assert meet(dispatcher.service, 5).detail == ""


def test_it_can_be_written_as_json(dispatcher, worker_of):
    worker = worker_of(dispatcher)
    told = json.loads(json.dumps(describe(survey(str(dispatcher.service), 5))))
    assert told["service"] == str(dispatcher.service)
    assert [item["address"] for item in told["workers"]] == [worker.address]
    assert told["workers"][0]["status"]["role"] == "worker"


def test_no_dispatcher():
    pair = take(0, None, "127.0.0.1")
    pair.close()
    with pair.listener, pytest.raises(PeerLostError, match="does not answer"):
        survey(f"127.0.0.1:{pair.port}", 1)


def test_no_address():
    with pytest.raises(ConfigError, match="HOST:PORT"):
        survey("somewhere")


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"HTTP/1.0 200 OK\r\n\r\n<html>", "answers GET /status with an invalid status"),
        (b"HTTP/1.0 500 No\r\n\r\n", "with 500"),
        (b"SSH-2.0-OpenSSH\r\n", "does not answer"),
        (b"", "does not answer"),
    ],
)
def test_another_program_behind_the_control_port(answer, text):
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_server(("127.0.0.1", 0)) as grpc:

        def serve():
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        server = look(ServiceAddress("127.0.0.1", grpc.getsockname()[1], listener.getsockname()[1]), 5)
        thread.join(10)
    assert server.state == "unknown"
    assert text in server.detail


def test_silent_control_port_costs_at_most_the_timeout():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with pytest.raises(OSError, match="does not answer: timed out"):
            request(ServiceAddress("127.0.0.1", 1, listener.getsockname()[1]), "GET", "/status", 0.2)


@contextlib.contextmanager
def dripping(pause_s):
    """A control port that sends a byte now and then, and never ends."""
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(b"HTTP/1.0 200 OK\r\nX: ")
                while not stop.wait(pause_s):
                    connection.sendall(b"y")

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        stop.set()
        thread.join(10)


def test_dripping_control_port_costs_at_most_the_timeout():
    with dripping(0.05) as port:
        start = time.monotonic()
        with pytest.raises(OSError, match="timed out"):
            request(ServiceAddress("127.0.0.1", 1, port), "GET", "/status", 0.5)
        assert time.monotonic() - start < 1.5


def test_a_survey_of_many_who_are_silent_ends_in_time(monkeypatch):
    """More than are asked at a time; those for whom no time is left are not asked at all."""
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(4)]
        ports = [server.getsockname()[1] for server in silent]
        monkeypatch.setattr(module, "_AT_ONCE", 2)
        monkeypatch.setattr(module, "DispatcherClient", lambda *_: _Names([f"127.0.0.1:{port - 1}" for port in ports]))
        start = time.monotonic()
        found = survey(f"127.0.0.1:1/{ports[0]}", 1.0)
        seconds = time.monotonic() - start
    assert seconds < 2.5
    assert len(found.workers) == 4
    assert {(worker.state, worker.status) for worker in found.workers} == {("dead", None)}
    late = module._look_at("127.0.0.1:1", time.monotonic())
    assert late.state == "unknown" and "not queried" in late.detail


class _Names(contextlib.AbstractContextManager):
    def __init__(self, names):
        self.names = names

    def workers(self):
        return self.names

    def __exit__(self, *_):
        pass


@pytest.mark.parametrize("text", ["2.21\x1b]0;owned\x07", "2.21\u202e"])
def test_what_controls_a_terminal_is_shown_as_its_escape(text):
    assert plain("plain ä") == "plain ä"
    assert "\x1b" not in plain(text) and plain(text).isprintable()
    status = Status("worker", "node:1", 2, "0.1", text, "3.11", 1, 1.0, "ready")
    answer = b"HTTP/1.0 200 OK\r\n\r\n" + json.dumps(status.to_json()).encode()
    for said in (answer, f"{text}\r\n".encode()):
        with answering(said) as port:
            server = look(ServiceAddress("127.0.0.1", port, port), 5)
        assert server.status is None and server.detail.isprintable()


@contextlib.contextmanager
def answering(answer):
    """A program that says this to everybody."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.sendall(answer)
                        connection.shutdown(socket.SHUT_WR)
                        connection.recv(1 << 16)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(20)


def test_waits_at_the_same_time():
    barrier = threading.Barrier(5)
    assert at_once(lambda item: (barrier.wait(10), item)[1], range(5)) == list(range(5))
    assert at_once(str, []) == []
