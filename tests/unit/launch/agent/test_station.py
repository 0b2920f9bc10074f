"""Tests of the orders of tfdist.launch.agent.station; the crew itself is in tests/launch."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from tfdist.launch.agent import station
from tfdist.launch.agent.station import Orders
from tfdist.launch.wire.record import RefusedFrameError

FIELDS: dict[str, Any] = {"job": "j", "key": "00ff", "first": 2, "count": 2, "size": 4, "folder": "/f"} | {
    "places": [],
    "port": 0,
    "fingerprint": "",
}


def _orders(**fields: Any) -> Orders:
    return Orders.read({**FIELDS, "variables": ["A=b=c", "B="], **fields}, ("10.0.0.1", 5), b"print")


def test_read() -> None:
    orders = _orders()
    ticket = orders.ticket
    assert (ticket.job, ticket.key, ticket.host, ticket.port, ticket.fingerprint) == (
        *("j", b"\0\xff", "10.0.0.1", 5),
        b"print",
    )
    assert orders.variables == {"A": "b=c", "B": ""}
    assert (orders.ranks, _orders(count=1).ranks) == ("ranks 2 to 3 of 4", "rank 2 of 4")
    assert "b=c" not in repr(orders)


def test_newcomers_dial_the_port_of_the_job() -> None:
    orders = _orders(places=["3", "0"], port=7, fingerprint=b"other".hex())
    assert (orders.ticket.host, orders.ticket.port, orders.ticket.fingerprint) == ("10.0.0.1", 7, b"other")
    assert orders.crew.places == (3, 0)


@pytest.mark.parametrize(
    "fields",
    [
        {"places": ["1"]},
        {"places": ["a", "b"]},
        {"fingerprint": "x"},
        {"first": -1},
        {"count": 0},
        {"count": 3},
        {"size": 3},
        {"key": "no hexadecimal"},
    ],
    ids=str,
)
def test_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(RefusedFrameError):
        _orders(**fields)


def test_environment() -> None:
    """Nothing is left of a job that the agent itself may be part of, and the launcher's variables win."""
    own = {"A": "own", "HOME": "/h", "TFDIST_RUN_KEY": "x", "TFDIST_RANK": "7", "TFDIST_RUN_ADDRESS": "h:1"}
    made = _orders().environment(own)
    assert {name: made[name] for name in ("A", "B", "HOME")} == {"A": "b=c", "B": "", "HOME": "/h"}
    assert (made["TFDIST_RUN_KEY"], made["TFDIST_RUN_ADDRESS"]) == ("00ff", "10.0.0.1:5")
    assert "TFDIST_RANK" not in made


def test_crew_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """The launcher only gets its status."""

    def fail(*_: Any) -> int:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(station.crew, "run", fail)
    child = station.start(_orders(), SimpleNamespace(close=lambda: None))  # type: ignore[arg-type]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert "BlockingIOError: Resource temporarily unavailable" in capfd.readouterr().err
