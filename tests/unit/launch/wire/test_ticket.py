"""Tests of tfdist.launch.wire.ticket."""

from __future__ import annotations

import pytest

from tfdist.errors import ConfigError
from tfdist.launch.wire.ticket import KEY_VARIABLE, VARIABLES, Ticket


def test_round_trip() -> None:
    ticket = Ticket.issue("127.0.0.1", 5)
    assert Ticket.read(ticket.variables()) == ticket
    assert Ticket.issue("127.0.0.1", 5).key != ticket.key


@pytest.mark.parametrize("host", ["fd00::1", "10.0.0.1"])
def test_address_and_certificate_travel(host: str) -> None:
    ticket = Ticket.issue(host, 5, bytes(range(32)))
    assert Ticket.read(ticket.variables()) == ticket
    assert ticket.address == ("[fd00::1]:5" if ":" in host else "10.0.0.1:5")
    assert set(ticket.variables()) == set(VARIABLES)


def test_key_is_not_shown() -> None:
    ticket = Ticket.issue("127.0.0.1", 5)
    assert ticket.key.hex() not in repr(ticket)
    assert str(ticket.key) not in repr(ticket)
    with pytest.raises(ConfigError) as raised:
        Ticket.read({**ticket.variables(), KEY_VARIABLE: "secret-that-is-no-hex"})
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("name", list(Ticket.issue("h", 1).variables())[:3])
def test_missing(name: str) -> None:
    variables = Ticket.issue("h", 1).variables()
    del variables[name]
    with pytest.raises(ConfigError, match="are missing or invalid"):
        Ticket.read(variables)
