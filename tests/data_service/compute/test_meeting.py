"""Who meets at a compute service: dispatchers are found once they have come, and the end reaches all who wait."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tfdist.data_service.inspection.address import ServiceAddress
from tfdist.errors import ConfigError, PeerLostError
from tfdist.system.network import interface
from tfdist.tensorflow.data import meeting

KEY = b"k" * 32


@contextlib.contextmanager
def running(dispatchers: int, local: bool = True) -> Iterator[meeting.ComputeService]:
    made = meeting.ComputeService(dispatchers, KEY, local)
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture
def service() -> Iterator[meeting.ComputeService]:
    with running(2) as made:
        yield made


def client_of(service: meeting.ComputeService, verbose: int = 1) -> meeting.ComputeClient:
    return meeting.ComputeClient(service.addresses, KEY, verbose)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "_REACH_S", 0.3)


def test_each_dispatcher_is_found_under_its_number(service: meeting.ComputeService) -> None:
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(client_of(service).wait_for_dispatcher_registration, number, 30) for number in (0, 1)]
        client_of(service).register_dispatcher(1, "host:51")
        assert waiting[1].result(30) == "host:51"
        assert not waiting[0].done()
        client_of(service).register_dispatcher(0, "host:50")
        assert waiting[0].result(30) == "host:50"


def test_one_that_does_not_come_is_named(service: meeting.ComputeService) -> None:
    client_of(service).register_dispatcher(0, "host:50")
    with pytest.raises(PeerLostError, match=r"dispatcher 1 has not registered with the compute service within 0.3 s"):
        client_of(service).wait_for_dispatcher_registration(1, 0.3)


def test_a_dispatcher_has_one_address(service: meeting.ComputeService) -> None:
    client = client_of(service)
    client.register_dispatcher(0, "host:50")
    client.register_dispatcher(0, "host:50")
    with pytest.raises(ConfigError, match="dispatcher 0 is at host:50; received host:60"):
        client.register_dispatcher(0, "host:60")
    assert client.wait_for_dispatcher_registration(0, 1) == "host:50"


@pytest.mark.parametrize("number", [-1, 2])
def test_a_number_that_there_is_not_is_refused(service: meeting.ComputeService, number: int) -> None:
    client = client_of(service)
    for ask in (lambda: client.register_dispatcher(number, "host:50"), lambda: wait(client, number)):
        with pytest.raises(ConfigError, match=f"there is no dispatcher {number}; expected 0 to 1"):
            ask()


def wait(client: meeting.ComputeClient, number: int) -> None:
    client.wait_for_dispatcher_registration(number, 30)


def test_a_question_of_another_version_is_refused(service: meeting.ComputeService) -> None:
    with pytest.raises(ConfigError, match="a different version of tfdist; install the same version"):
        client_of(service)._ask(dance=True)


def test_the_end_reaches_all_who_wait(service: meeting.ComputeService) -> None:
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(client_of(service).wait_for_shutdown) for _ in range(3)]
        client_of(service).shutdown()
        for future in waiting:
            future.result(30)
    client_of(service).wait_for_shutdown()  # who comes late is told too


def test_many_who_say_nothing_hold_up_nobody(service: meeting.ComputeService) -> None:
    ((place,),) = service.addresses.values()
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(socket.create_connection(place))
        client_of(service).register_dispatcher(0, "host:50")


@pytest.mark.usefixtures("impatient")
def test_who_has_no_key_enters_nothing(service: meeting.ComputeService) -> None:
    with pytest.raises(PeerLostError, match=r"answers 403: .*does not have the same key"):
        meeting.ComputeClient(service.addresses, b"o" * 32).register_dispatcher(0, "host:50")
    with pytest.raises(PeerLostError, match="has not registered"):
        client_of(service).wait_for_dispatcher_registration(0, 0)


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bytes, bytes]]:
    """Questions and answers as they are on the network."""
    crossed: list[tuple[bytes, bytes]] = []
    original = meeting.request

    def tapped(*arguments: object) -> tuple[int, bytes]:
        code, answer = original(*arguments)  # type: ignore[arg-type]
        crossed.append((arguments[-1], answer))  # type: ignore[arg-type]
        return code, answer

    monkeypatch.setattr(meeting, "request", tapped)
    return crossed


def test_the_key_does_not_cross(service: meeting.ComputeService, record: list[tuple[bytes, bytes]]) -> None:
    client_of(service).register_dispatcher(0, "host:50")
    ((question, answer),) = record
    assert b"host:50" in question and b"host:50" in answer
    assert not any(key in question + answer for key in (KEY, KEY.hex().encode()))


def test_a_question_that_was_recorded_changes_nothing(
    service: meeting.ComputeService, record: list[tuple[bytes, bytes]]
) -> None:
    client = client_of(service)
    client.register_dispatcher(0, "host:50")
    before = client._ask(dispatcher=0)
    (place,) = client._places
    assert meeting.request(place, "POST", "/", 5, record[0][0])[0] == 200
    assert client._ask(dispatcher=0) == before
    changed = record[0][0].replace(b"host:50", b"host:66")
    assert meeting.request(place, "POST", "/", 5, changed)[0] == 403


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", ["answer to another question", "the question itself", "nothing of ours"])
def test_an_answer_is_believed_only_with_its_proof(
    service: meeting.ComputeService,
    record: list[tuple[bytes, bytes]],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    client = client_of(service)
    assert client._ask()["ended"] is False
    recorded = record[0][1]
    answers = {"answer to another question": recorded, "nothing of ours": b"0" * 64 + b'\n{"ended": true}'}
    monkeypatch.setattr(meeting, "request", lambda *sent: (200, answers.get(kind, sent[-1])))
    with pytest.raises(PeerLostError, match="does not have the same key"):
        client.wait_for_shutdown()


@pytest.mark.usefixtures("impatient")
def test_a_service_that_is_gone_is_told_with_its_addresses() -> None:
    service = meeting.ComputeService(1, KEY)
    client = client_of(service)
    client.register_dispatcher(0, "host:50")
    service.stop()
    service.stop()
    ((place,),) = service.addresses.values()
    with pytest.raises(PeerLostError, match=rf"no compute service answers.*127.0.0.1:{place[1]} .*refused"):
        client.wait_for_shutdown()


@pytest.mark.usefixtures("impatient")
def test_one_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "_ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with pytest.raises(PeerLostError, match=r"no compute service answers.*timed out"):
            meeting.ComputeClient({"lo": [silent.getsockname()]}, KEY).shutdown()


def test_the_address_that_answers_is_taken(service: meeting.ComputeService) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        dead = nobody.getsockname()[:2]
    client = meeting.ComputeClient({"eth0": [dead], **service.addresses}, KEY)
    assert client.host == "127.0.0.1"
    ((host, port),) = service.addresses["lo"]
    assert client._places == [ServiceAddress(host, port, port)]


@pytest.mark.parametrize(("verbose", "level"), [(1, logging.DEBUG), (2, logging.INFO)])
def test_questions_are_logged_as_loudly_as_wanted(
    service: meeting.ComputeService, caplog: pytest.LogCaptureFixture, verbose: int, level: int
) -> None:
    with caplog.at_level(logging.DEBUG, "tfdist"):
        client_of(service, verbose).register_dispatcher(0, "host:50")
    (record,) = (record for record in caplog.records if "request to" in record.message)
    assert record.levelno == level
    assert "host:50" in record.message
    assert KEY.hex() not in caplog.text


def test_for_other_machines_it_has_the_address_of_each_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interface, "addresses", lambda: {"lo": "127.0.0.1", "eth0": "127.0.0.2", "eth1": "127.0.0.3"})
    monkeypatch.setattr(meeting, "is_loopback", lambda address: address == "127.0.0.1")
    with running(1, local=False) as service:
        assert [(name, places[0][0]) for name, places in service.addresses.items()] == [
            ("eth0", "127.0.0.2"),
            ("eth1", "127.0.0.3"),
        ]
        client_of(service).register_dispatcher(0, "host:50")


def test_a_machine_without_an_address_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interface, "addresses", dict)
    with pytest.raises(ConfigError, match="no IPv4 address reachable from other machines"):
        meeting.ComputeService(1, KEY, local=False)
