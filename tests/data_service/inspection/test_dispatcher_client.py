"""The dispatcher's own list of workers, and its tasks."""

import pytest

from tfdist.data_service.inspection.dispatcher_client import DispatcherClient
from tfdist.data_service.server.port import take
from tfdist.errors import PeerLostError


def test_workers_are_listed_also_when_they_are_gone(dispatcher, worker_of):
    with DispatcherClient(dispatcher.address, 5) as client:
        assert client.workers() == ()
        first, second = worker_of(dispatcher), worker_of(dispatcher)
        assert client.workers() == tuple(sorted([first.address, second.address]))
        first.stop()
        assert first.address in client.workers()


def test_a_worker_without_work_has_no_tasks(dispatcher, worker_of):
    with DispatcherClient(dispatcher.address, 5) as client:
        assert client.tasks(worker_of(dispatcher).address) == ()


def test_no_dispatcher_is_named():
    pair = take(0, None, "127.0.0.1")
    pair.close()
    with pair.listener, DispatcherClient(f"127.0.0.1:{pair.port}", 2) as client:
        with pytest.raises(PeerLostError, match=f"127.0.0.1:{pair.port} does not answer GetWorkers: UNAVAILABLE"):
            client.workers()


def test_another_program_behind_the_port_is_named():
    pair = take(0, None, "127.0.0.1")
    pair.close()
    with pair.listener, DispatcherClient(f"127.0.0.1:{pair.control_port}", 1) as client:
        with pytest.raises(PeerLostError, match="does not answer GetWorkers"):
            client.workers()


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400", b"\x0a\xff", b"\x0a\x03\x0a\x01\xff"])
def test_an_answer_that_is_no_message_is_refused(monkeypatch, answer):
    with DispatcherClient("127.0.0.1:9", 1) as client:
        monkeypatch.setattr(client._channel, "unary_unary", lambda *_, **__: lambda *_, **__: answer)
        with pytest.raises(PeerLostError, match="9 answers GetWorkers with a message that is not"):
            client.workers()
