"""Tests of tfdist.world.rendezvous, each process a thread; real ones are tested by tests/launch/test_foreign.py."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tfdist import config
from tfdist.errors import ConfigError, PeerLostError
from tfdist.world import rendezvous

LIMIT_S = 30.0


@pytest.fixture
def settings(tmp_path: Path) -> config.Config:
    path = tmp_path / "key"
    path.write_text("k" * 40)
    path.chmod(0o600)
    return dataclasses.replace(config.read({}), key_file=str(path), stall_shutdown_seconds=LIMIT_S)


def free_port(count: int = 1) -> int:
    """The first of so many ports in a row."""
    while True:
        with contextlib.suppress(OSError), contextlib.ExitStack() as probes:
            port = int(probes.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1])
            for more in range(1, count):
                probes.enter_context(socket.create_server(("127.0.0.1", port + more)))
            return port


def torch(rank: int, size: int, port: int) -> dict[str, str]:
    place = {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size)}
    return place | {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}


def find_all(environments: list[dict[str, str]], settings: Callable[[int], config.Config]) -> list[object]:
    found: list[object] = [None] * len(environments)

    def run(rank: int, environment: Mapping[str, str]) -> None:
        try:
            found[rank] = rendezvous.find(environment, settings(rank))
        except PeerLostError as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(environments)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * LIMIT_S)
    for each in found:
        if isinstance(each, rendezvous.Found):
            each.listener.close()
    return found


@pytest.mark.parametrize("size", [2, 3, 4])
def test_ranks_of_torchrun(settings: config.Config, size: int) -> None:
    port = free_port()
    found = find_all([torch(rank, size, port) for rank in range(size)], lambda _: settings)
    epochs = [each.epoch for each in found if isinstance(each, rendezvous.Found)]
    assert [epoch.rank for epoch in epochs] == list(range(size))
    assert {dataclasses.replace(epoch, rank=0) for epoch in epochs} == {epochs[0]}
    assert epochs[0].hosts == (0,) * size, "they see each other's processes"
    assert len(set(epochs[0].addresses)) == size


def test_port_of_the_store_of_torchrun_is_left_to_it(settings: config.Config) -> None:
    port = free_port(2)
    environment = {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    with socket.create_server(("127.0.0.1", port)):
        found = find_all([torch(rank, 2, port) | environment for rank in range(2)], lambda _: settings)
    assert all(isinstance(each, rendezvous.Found) for each in found)


def test_other_key_is_refused(settings: config.Config, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("x" * 40)
    other.chmod(0o600)
    quick = dataclasses.replace(settings, stall_shutdown_seconds=2.0)
    wrong = dataclasses.replace(quick, key_file=str(other))
    port = free_port()
    told = find_all([torch(rank, 2, port) for rank in range(2)], lambda rank: wrong if rank else quick)
    assert "does not have this job's key" in str(told[1])
    assert "rank 0 waited 2 s for connections with rank 1" in str(told[0])


def test_tasks_listen_where_tf_config_says(settings: config.Config) -> None:
    addresses = [f"localhost:{free_port()}", f"127.0.0.1:{free_port()}"]
    given = [{"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}} for rank in range(2)]
    found = find_all([{"TF_CONFIG": json.dumps(each)} for each in given], lambda _: settings)
    epochs = [each.epoch for each in found if isinstance(each, rendezvous.Found)]
    ports = [int(address.rpartition(":")[2]) for address in addresses]
    assert [epoch.addresses for epoch in epochs] == [tuple(("127.0.0.1", port) for port in ports)] * 2
    assert [epoch.hosts for epoch in epochs] == [(0, 1)] * 2


def test_ranks_elsewhere_need_a_key_file(settings: config.Config) -> None:
    given = torch(1, 2, 5000) | {"MASTER_ADDR": "192.0.2.1"}
    with pytest.raises(ConfigError, match="TFDIST_KEY_FILE") as told:
        rendezvous.find(given, dataclasses.replace(settings, key_file=None))
    assert "secrets.token_hex" in str(told.value)


def test_ranks_of_this_machine_need_none(
    settings: config.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    port = free_port()
    keyless = dataclasses.replace(settings, key_file=None)
    found = find_all([torch(rank, 2, port) for rank in range(2)], lambda _: keyless)
    assert all(isinstance(each, rendezvous.Found) for each in found)
    assert (tmp_path / "tfdist" / "loopback.key").exists()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"MASTER_PORT": "x"}, "MASTER_PORT is 'x'"),
        ({"MASTER_PORT": "65535"}, "MASTER_PORT is '65535'"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR is ''"),
        ({"MASTER_ADDR": "no.such.host.invalid"}, "'no.such.host.invalid' cannot be resolved"),
        ({"MASTER_ADDR": "192.0.2.1"}, "cannot listen"),
    ],
)
def test_variables_that_cannot_be_used(settings: config.Config, change: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        rendezvous.find(torch(0, 2, 5000) | change, settings)
