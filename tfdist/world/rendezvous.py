"""Finds the other ranks of a job that torchrun or TF_CONFIG has started, where no launcher of ours announces them."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import logging
import os
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfdist import config, errors
from tfdist.protocol import key_file, mesh
from tfdist.protocol.epoch import Epoch
from tfdist.system import process
from tfdist.system.network import endpoint
from tfdist.system.rank import job_place, tf_config

_logger = logging.getLogger("tfdist")
_LENGTH, _LENGTH_BYTES = "!I", 4
_LONGEST_BYTES = 1 << 20
_AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
_STARTS = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "WORLD_SIZE")
_MASTER = ("MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Found:
    """What `find` returns: the ranks, and this one's listener, whose address the others know."""

    epoch: Epoch
    listener: socket.socket


def find(environment: Mapping[str, str], settings: config.Config) -> Found:
    """Finds the ranks; waits for those that are not there yet.

    Raises:
        ConfigError: If variables or the key are missing or cannot be used.
        PeerLostError: If some ranks do not come, or have another key.
    """
    if job_place.by_torchrun(environment):
        return _meet(environment, settings)
    task = tf_config.find(environment)
    assert task is not None
    return _of_task(task, settings)


def _of_task(task: tf_config.Task, settings: config.Config) -> Found:
    """Everybody's address is known."""
    addresses = [_resolved(address) for address in task.addresses]
    key = _key(addresses, settings)
    listener = _listen(addresses[task.rank], f"{tf_config.VARIABLE} gives this task")
    names = tuple(dict.fromkeys(task.hosts))
    hosts = tuple(names.index(host) for host in task.hosts)
    job = "|".join(task.addresses)
    processes = tuple(range(len(task.hosts)))
    return Found(Epoch(job, 1, task.rank, key, tuple(addresses), hosts, names, processes), listener)


def _meet(environment: Mapping[str, str], settings: config.Config) -> Found:
    """Rank 0 waits for all others at MASTER_ADDR, and tells them where each one listens."""
    rank, size = job_place.of_job(environment) or (0, 1)
    place, limit_s = _meeting_place(environment), settings.stall_shutdown_seconds
    key, job = _key([place], settings), _job(environment, place)
    server = _listen(place, "MASTER_ADDR and MASTER_PORT give rank 0") if rank == 0 else None
    others = dict.fromkeys(range(1, size), place) if rank == 0 else {0: place}
    context = f"rendezvous|{job}".encode()
    silence_s = settings.host_timeout_seconds
    found = mesh.Mesh(server, rank, others, key, context, limit_s, silence_s).connect(_logger.warning)
    with contextlib.ExitStack() as to_close:
        for connection in found.values():
            to_close.enter_context(connection)
        own = place[0] if rank == 0 else found[0].getsockname()[0]
        listener = mesh.listen(own)
        machine = process.machine() or f"{os.uname().nodename} {os.getpid()}"
        card = {"at": endpoint.text(listener.getsockname()[:2]), "machine": machine, "name": os.uname().nodename}
        try:
            return Found(_epoch(job, rank, key, _exchange(card, rank, found, limit_s)), listener)
        except BaseException:
            listener.close()
            raise


def _exchange(card: dict[str, str], rank: int, found: Mapping[int, socket.socket], limit_s: float) -> list[Any]:
    """The cards of all ranks, by rank, through rank 0."""
    deadline = time.monotonic() + limit_s
    try:
        if rank > 0:
            _send(found[0], card, deadline)
            return list(_receive(found[0], deadline))
        cards = [card, *(_receive(found[other], deadline) for other in sorted(found))]
        for connection in found.values():
            _send(connection, cards, deadline)
        return cards
    except (OSError, ValueError) as error:
        raise errors.PeerLostError(
            f"rank {rank} lost its connection to {'rank 0' if rank else 'another rank'} in tfdist.init(): {error}. See "
            "the output of the other ranks."
        ) from None


def _epoch(job: str, rank: int, key: bytes, cards: list[Any]) -> Epoch:
    machines = list(dict.fromkeys(card["machine"] for card in cards))
    names = {card["machine"]: card["name"] for card in cards}
    return Epoch(
        job=job,
        number=1,
        rank=rank,
        key=key,
        addresses=tuple(endpoint.parse(card["at"]) for card in cards),
        hosts=tuple(machines.index(card["machine"]) for card in cards),
        names=tuple(names[machine] for machine in machines),
        processes=tuple(range(len(cards))),
    )


def _job(environment: Mapping[str, str], place: endpoint.Address) -> str:
    """Names this start of the job: what torchrun starts again is another one."""
    return "|".join((endpoint.text(place), *(environment.get(name, "") for name in _STARTS)))


def _meeting_place(environment: Mapping[str, str]) -> endpoint.Address:
    address, port = (environment.get(name, "") for name in _MASTER)
    if not address or not port.isdecimal() or not 0 < int(port) < (1 << 16) - 1:
        raise errors.ConfigError(
            f"RANK and WORLD_SIZE are set, but MASTER_ADDR is {address!r} and MASTER_PORT is {port!r}; expected the "
            "host of rank 0 and a port that is free there, as torchrun sets them. Unset RANK and WORLD_SIZE to run "
            "alone."
        )
    taken = environment.get(_AGENT_STORE, "") == "True"  # torchrun itself listens there
    return _resolved(f"{address}:{int(port) + taken}")


def _resolved(address: str) -> endpoint.Address:
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        raise errors.ConfigError(f"host {host!r} cannot be resolved: {error.strerror}. Check its spelling.") from None
    at = min(found, key=lambda each: each[0] != socket.AF_INET)[4]
    return str(at[0]), int(at[1])


def _listen(own: endpoint.Address, what: str) -> socket.socket:
    """Listens at the address by which the others know this rank."""
    try:
        return mesh.listen(*own)
    except OSError as error:
        raise errors.ConfigError(
            f"{what} the address {endpoint.text(own)}, where this process cannot listen: {error.strerror}. Choose "
            "another port, or an address of this host."
        ) from None


def _key(addresses: list[endpoint.Address], settings: config.Config) -> bytes:
    if settings.key_file:
        return key_file.read(settings.key_file, config.variable("key_file"))
    outside = next((each for each in addresses if not ipaddress.ip_address(each[0]).is_loopback), None)
    if outside is None:
        return key_file.of_this_machine(Path(config.cache_folder(os.environ)))
    raise errors.ConfigError(
        f"ranks on several hosts ({outside[0]}) need a key by which they know each other. Make one: "
        f"{key_file.MAKE.format('tfdist.key')}, copy it to all hosts, and set TFDIST_KEY_FILE to its path there."
    )


def _send(connection: socket.socket, value: Any, deadline: float) -> None:
    data = json.dumps(value).encode()
    connection.settimeout(max(0.001, deadline - time.monotonic()))
    connection.sendall(struct.pack(_LENGTH, len(data)) + data)


def _receive(connection: socket.socket, deadline: float) -> Any:
    (length,) = struct.unpack(_LENGTH, _read(connection, _LENGTH_BYTES, deadline))
    if length > _LONGEST_BYTES:
        raise ValueError(f"a message of {length} bytes; at most {_LONGEST_BYTES} are accepted")
    return json.loads(_read(connection, length, deadline))


def _read(connection: socket.socket, count: int, deadline: float) -> bytes:
    data = b""
    while len(data) < count:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        more = connection.recv(count - len(data))
        if not more:
            raise ConnectionResetError("it closed the connection")
        data += more
    return data
