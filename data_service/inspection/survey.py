"""Who is there: the dispatcher's list of workers, and what each server tells about itself. It changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tfdist.data_service.inspection import status
from tfdist.data_service.inspection.address import ServiceAddress
from tfdist.data_service.inspection.control_client import accepts, fetch, plain
from tfdist.data_service.inspection.dispatcher_client import DispatcherClient
from tfdist.data_service.inspection.status import Status
from tfdist.errors import ConfigError, PeerLostError

READY, DRAINED, DEAD, UNKNOWN = status.READY, status.DRAINED, "dead", "unknown"
_AT_ONCE = 32
# Of the time for one server: its control port, and then whether its gRPC listens.
_FETCH_PART = 0.7
_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True)
class Server:
    """One server as it was found.

    Attributes:
        address: "HOST:PORT" of its gRPC.
        state: "ready", "draining", "drained" (it holds nothing, and leaves or has left), "dead" (nothing listens),
            "unknown" (something listens, but its control port tells nothing) or "starting".
        status: What it told; None if it told nothing.
        detail: Why it told nothing, and of a dispatcher what to write instead; empty if it did.
    """

    address: str
    state: str
    status: Status | None
    detail: str = ""


@dataclass(frozen=True)
class Survey:
    """A service at one moment.

    Attributes:
        service: Its address as it is written.
        dispatcher: The dispatcher.
        workers: All workers that ever registered, by address.
    """

    service: str
    dispatcher: Server
    workers: tuple[Server, ...]

    @property
    def dead(self) -> tuple[str, ...]:
        """The addresses of workers that are gone without having been drained."""
        return tuple(worker.address for worker in self.workers if worker.state == DEAD)


def survey(service: str | ServiceAddress, timeout_s: float = 5.0) -> Survey:
    """Asks the dispatcher for its workers, and each server for its status.

    Args:
        service: "HOST:PORT" of the dispatcher, or "HOST:PORT/CONTROL".
        timeout_s: Seconds for the list of workers, and again for what all servers tell, who are asked at the same time.

    Returns:
        What was found. A worker is "unknown" if its control port is not its port + 1, or if it told nothing in time.

    Raises:
        ConfigError: If `service` is not an address, or that of a server that is no dispatcher.
        PeerLostError: If the dispatcher does not answer.
    """
    address = ServiceAddress.parse(service) if isinstance(service, str) else service
    with DispatcherClient(address.grpc, timeout_s) as client:
        names = client.workers()
    end = time.monotonic() + timeout_s
    dispatcher, *workers = at_once(lambda name: _look_at(name, end), [str(address), *names])
    dispatcher = _named_otherwise(dispatcher, address)
    leaving = dispatcher.status.leaving if dispatcher.status is not None else {}
    drained = dict.fromkeys(leaving, DRAINED)
    found = (replace(each, state=drained.get(each.address, DEAD)) if each.state == DEAD else each for each in workers)
    return Survey(str(address), dispatcher, tuple(found))


def meet(address: ServiceAddress, timeout_s: float) -> Server:
    """The dispatcher alone, once its gRPC has answered.

    Raises:
        ConfigError: If another server is there.
        PeerLostError: If it does not answer.
    """
    with DispatcherClient(address.grpc, timeout_s) as client:
        client.workers()
    return _named_otherwise(look(address, timeout_s), address)


def _named_otherwise(found: Server, address: ServiceAddress) -> Server:
    """A server that told nothing, with the remedy: whoever named it may have meant another control port."""
    return replace(found, detail=f"{found.detail}; {address.elsewhere}") if found.state == UNKNOWN else found


def _look_at(name: str, end: float) -> Server:
    """What a server tells about itself that is written in any way; one nobody can ask is unknown."""
    try:
        address = ServiceAddress.parse(name)
    except ConfigError as error:
        return Server(plain(name), UNKNOWN, None, str(error))
    left_s = end - time.monotonic()
    if left_s <= 0:
        return Server(address.grpc, UNKNOWN, None, "it was not asked: the others took all the time of this survey")
    return look(address, left_s)


def look(address: ServiceAddress, timeout_s: float) -> Server:
    """What one server tells about itself, within this time; "dead" where nothing listens."""
    end = time.monotonic() + timeout_s
    try:
        found = fetch(address, timeout_s * _FETCH_PART)
    except OSError as error:
        state = UNKNOWN if accepts(address.host, address.port, end - time.monotonic()) else DEAD
        return Server(address.grpc, state, None, plain(str(error)))
    return Server(address.grpc, found.state, found)


def at_once(function: Callable[[_T], _R], arguments: Sequence[_T]) -> list[_R]:
    """`map`, with several calls at the same time, for calls that wait."""
    if not arguments:
        return []
    with ThreadPoolExecutor(min(_AT_ONCE, len(arguments)), "tfdist-survey") as pool:
        return list(pool.map(function, arguments))


def describe(found: Survey) -> dict[str, Any]:
    """The survey as JSON has it."""

    def server(item: Server) -> dict[str, Any]:
        told = item.status.to_json() if item.status is not None else None
        return {"address": item.address, "state": item.state, "detail": item.detail, "status": told}

    return {
        "schema": 1,
        "service": found.service,
        "dispatcher": server(found.dispatcher),
        "workers": [server(worker) for worker in found.workers],
    }


def unreachable(service: ServiceAddress, waited_s: float, reason: str) -> PeerLostError:
    """The error for a dispatcher that did not answer in time."""
    return PeerLostError(
        f"no data service answers at {service.grpc}: tried for {waited_s:.0f} s; the last answer: {reason}. Check the "
        f"address and the network, or start one: tfdist data-service dispatcher --port {service.port}"
    )
