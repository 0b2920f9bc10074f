"""Surveys a data service: the dispatcher's list of workers, and the status of each server. Changes nothing."""

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
    """One server at the time of the survey.

    Attributes:
        address: "HOST:PORT" of its gRPC.
        state: "ready", "draining", "drained" (it holds nothing, and is leaving or has left), "dead" (nothing listens),
            "unknown" (something listens, but its control port does not answer) or "starting".
        status: Its status; None if it reported none.
        detail: Why it reported no status, with the remedy for a dispatcher; empty if it did.
    """

    address: str
    state: str
    status: Status | None
    detail: str = ""


@dataclass(frozen=True)
class Survey:
    """A service at one moment.

    Attributes:
        service: Its address in text form.
        dispatcher: The dispatcher.
        workers: All workers that ever registered, by address.
    """

    service: str
    dispatcher: Server
    workers: tuple[Server, ...]

    @property
    def dead(self) -> tuple[str, ...]:
        """The addresses of workers that died without being drained."""
        return tuple(worker.address for worker in self.workers if worker.state == DEAD)


def survey(service: str | ServiceAddress, timeout_s: float = 5.0) -> Survey:
    """Asks the dispatcher for its workers, and each server for its status.

    Args:
        service: "HOST:PORT" of the dispatcher, or "HOST:PORT/CONTROL".
        timeout_s: Seconds for the list of workers, and again for the statuses of all servers, which are queried in
            parallel.

    Returns:
        The survey. A worker is "unknown" if its control port is not its port + 1, or if it did not answer in time.

    Raises:
        ConfigError: If `service` is not an address, or the server there is not a dispatcher.
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
        ConfigError: If a different server is there.
        PeerLostError: If it does not answer.
    """
    with DispatcherClient(address.grpc, timeout_s) as client:
        client.workers()
    return _named_otherwise(look(address, timeout_s), address)


def _named_otherwise(found: Server, address: ServiceAddress) -> Server:
    """Adds the remedy to a server without a status: its address may need another control port."""
    return replace(found, detail=f"{found.detail}; {address.elsewhere}") if found.state == UNKNOWN else found


def _look_at(name: str, end: float) -> Server:
    """The status of a server given by any text; unknown if the text is not an address."""
    try:
        address = ServiceAddress.parse(name)
    except ConfigError as error:
        return Server(plain(name), UNKNOWN, None, str(error))
    left_s = end - time.monotonic()
    if left_s <= 0:
        return Server(address.grpc, UNKNOWN, None, "not queried: the other servers used up the time of this survey")
    return look(address, left_s)


def look(address: ServiceAddress, timeout_s: float) -> Server:
    """The status of one server, within this time; "dead" if nothing listens."""
    end = time.monotonic() + timeout_s
    try:
        found = fetch(address, timeout_s * _FETCH_PART)
    except OSError as error:
        state = UNKNOWN if accepts(address.host, address.port, end - time.monotonic()) else DEAD
        return Server(address.grpc, state, None, plain(str(error)))
    return Server(address.grpc, found.state, found)


def at_once(function: Callable[[_T], _R], arguments: Sequence[_T]) -> list[_R]:
    """`map` with parallel calls, for calls that wait."""
    if not arguments:
        return []
    with ThreadPoolExecutor(min(_AT_ONCE, len(arguments)), "tfdist-survey") as pool:
        return list(pool.map(function, arguments))


def describe(found: Survey) -> dict[str, Any]:
    """The survey as JSON."""

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
        f"no data service answers at {service.grpc}: tried for {waited_s:.0f} s; last error: {reason}. Check the "
        f"address and the network, or start one: tfdist data-service dispatcher --port {service.port}"
    )
