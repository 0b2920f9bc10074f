"""The addresses of this machine, by interface, are real ones."""

from __future__ import annotations

import fcntl
import socket

import pytest

from tfdist.system.network import interface


def test_addresses_are_those_of_this_machine() -> None:
    found = interface.addresses()
    assert found["lo"] == interface.address("lo") == "127.0.0.1"
    assert set(found) <= {name for _, name in socket.if_nameindex()}
    for address in found.values():
        socket.create_server((address, 0)).close()


def test_an_interface_without_an_address_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def ioctl(_file: object, _request: int, interface_request: bytes) -> bytes:
        if interface_request[:16].rstrip(b"\0") != b"eth1":
            raise OSError("no address")
        return interface_request[:20] + socket.inet_aton("10.1.2.3") + bytes(8)

    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "eth0"), (2, "eth1")])
    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    assert interface.addresses() == {"eth1": "10.1.2.3"}
    assert interface.address("zz9") is None
