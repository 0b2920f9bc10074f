"""What is checked before a service is used."""

import dataclasses
import threading
import time

import pytest
import tensorflow as tf

from tfdist import __version__
from tfdist.data_service.inspection.address import ServiceAddress
from tfdist.data_service.inspection.handshake import check_versions, shake_hands, wait_for
from tfdist.data_service.inspection.status import Status
from tfdist.data_service.inspection.survey import Server
from tfdist.data_service.server.port import take
from tfdist.errors import ConfigError, PeerLostError

STATUS = Status("worker", "node:5050", 5051, __version__, tf.__version__, "3.11.7", 12, 1000.5, "ready")


def test_the_same_versions_pass(dispatcher, worker_of):
    worker = worker_of(dispatcher)
    assert [item.address for item in shake_hands(str(dispatcher.service)).workers] == [worker.address]


@pytest.mark.parametrize("change", [{"tensorflow": "2.16.2"}, {"tfdist": "0.0.9"}])
def test_another_version_names_both_sides(change):
    server = Server("node:5050", "ready", dataclasses.replace(STATUS, **change))
    with pytest.raises(ConfigError) as raised:
        check_versions(server)
    text = str(raised.value)
    assert "worker at node:5050" in text and next(iter(change.values())) in text
    assert f"tfdist {__version__} and TensorFlow {tf.__version__}" in text


def test_a_server_that_tells_nothing_is_not_checked():
    check_versions(Server("node:5050", "unknown", None, "no answer"))


def test_no_dispatcher_is_an_error_in_time_that_says_what_to_do():
    pair = take(0, None, "127.0.0.1")
    pair.close()
    with pair.listener, pytest.raises(PeerLostError) as raised:
        shake_hands(f"127.0.0.1:{pair.port}", deadline_s=1)
    text = str(raised.value)
    assert f"no data service answers at 127.0.0.1:{pair.port}" in text
    assert f"tfdist data-service dispatcher --port {pair.port}" in text


def test_one_that_is_just_starting_is_waited_for():
    tries = iter([PeerLostError("a"), PeerLostError("b"), None])

    def attempt(_seconds):
        error = next(tries)
        if error is not None:
            raise error
        return "found"

    assert wait_for(ServiceAddress("h", 1, 2), attempt, 30) == "found"


def test_no_attempt_goes_beyond_the_deadline():
    """An attempt has two steps, each of which may take the seconds it is given."""
    given = []
    start = time.monotonic()

    def attempt(seconds):
        given.append((time.monotonic() - start, seconds))
        threading.Event().wait(2 * seconds)
        raise PeerLostError("silent")

    with pytest.raises(PeerLostError, match="tried for 3 s; last error: silent"):
        wait_for(ServiceAddress("h", 1, 2), attempt, 3)
    assert time.monotonic() - start < 4
    assert all(at + 2 * seconds < 3.5 for at, seconds in given)
