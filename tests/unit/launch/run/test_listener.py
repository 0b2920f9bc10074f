"""Tests of tfdist.launch.run.listener."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from tfdist.errors import ConfigError
from tfdist.launch.host import host
from tfdist.launch.host.core import Cores
from tfdist.launch.host.host import Host
from tfdist.launch.run import listener
from tfdist.launch.start.mpirun import Mpirun


def _address(**call: Any) -> str:
    mpirun = Mpirun("m", (Host("127.0.0.1", 2), Host("192.0.2.1", 1)), cores=Cores(2, bindable=True), **call)
    with listener.towards(mpirun) as made:
        return str(made.getsockname()[0])


def test_local_job_listens_on_loopback() -> None:
    assert _address(local=True) == "127.0.0.1"
    assert _address(local=True, interfaces=("eth9",)) == "127.0.0.1"


def test_named_interface() -> None:
    assert _address(local=False, interfaces=("lo",)) == "127.0.0.1"
    assert _address(local=False, interfaces=("zz9", "lo")) == "127.0.0.1"


def test_interface_towards_the_first_remote_host(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = {"192.0.2.1": "127.0.0.1"}
    monkeypatch.setattr(host, "address", addresses.__getitem__)
    monkeypatch.setattr(host, "is_local", lambda name: name.startswith("127."))
    assert _address(local=False) == "127.0.0.1"


@pytest.mark.parametrize("name", ["127.0.0.1", "::1", "localhost"])
def test_named_address(name: str) -> None:
    with listener.named((name, 0), "--listen") as made:
        address, port = made.getsockname()[:2]
        assert address == ("::1" if name == "::1" else "127.0.0.1")
        with pytest.raises(ConfigError, match=r"--listen \S+: cannot listen there: Address already in use"):
            listener.named((name, port), "--listen")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("0.0.0.0", "expected one address of this machine, not all of them"),
        ("::", r"--listen \[::\]:0: expected one address"),
        ("192.0.2.1", "Cannot assign requested address. Choose an address of this machine"),
        ("no-such-host.invalid", "cannot be resolved"),
    ],
)
def test_address_that_cannot_be_used(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        listener.named((name, 0), "--listen")


def test_address_towards_a_host_of_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "is_local", lambda name: False)
    mpirun = Mpirun("m", (Host("::1", 1),), cores=Cores(2, bindable=True), local=False)
    with listener.towards(mpirun) as made:
        assert (made.family, made.getsockname()[0]) == (socket.AF_INET6, "::1")
