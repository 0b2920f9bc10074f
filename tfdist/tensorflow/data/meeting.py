"""The rendezvous of a compute job and a training job: registers and finds dispatchers, and announces the end.

Requests use HTTP. Request and answer are JSON after a signature by the shared key (HMAC-SHA256); the key is never sent.
The signature of an answer covers the nonce of its request, so a recorded answer fits no other request. Replaying a
recorded request changes nothing. No data passes here, and no workers are registered: their dispatcher reports how many
there are.
"""

from __future__ import annotations

import hmac
import json
import logging
import secrets
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tfdist.data_service.inspection.address import ServiceAddress, is_loopback
from tfdist.data_service.inspection.control_client import plain, request
from tfdist.errors import ConfigError, PeerLostError
from tfdist.system.network import interface
from tfdist.system.network.http_server import BoundedHandler, BoundedServer

_LOG = logging.getLogger("tfdist")
_BACKLOG = 128
_LARGEST_BYTES = 1 << 16
_OK, _FORBIDDEN = 200, 403
_ANSWER_S = 3.0
_REACH_S = 15.0
_PAUSE_S = 0.2
# How often each rank of a compute job asks whether it has ended.
_END_PERIOD_S = 1.0
_LOUD = 2


class ComputeService(BoundedServer):
    """The rendezvous server, as threads of this process until `stop`.

    Args:
        dispatchers: Number of dispatchers.
        key: The key of all clients; `secrets.token_bytes(32)`.
        local: Whether only this machine may reach it.

    Attributes:
        addresses: By network interface, the addresses and ports where it can be reached.

    Raises:
        ConfigError: If this machine has no address reachable from others.
    """

    def __init__(self, dispatchers: int, key: bytes, local: bool = True) -> None:
        reached = {name: at for name, at in interface.addresses().items() if is_loopback(at) == local}
        if not reached:
            raise ConfigError("this machine has no IPv4 address reachable from other machines; check `ip -4 address`.")
        super().__init__(socket.create_server(("127.0.0.1" if local else "", 0), backlog=_BACKLOG), _Handler)
        self.addresses = {name: [(at, int(self.server_address[1]))] for name, at in reached.items()}
        self.key, self._dispatchers, self._ended = key, [""] * dispatchers, False
        self._lock = threading.Lock()
        self.start("tfdist-compute-service")

    def reply(self, dispatcher: int = 0, address: str = "", end: bool = False) -> dict[str, Any]:
        """Records a dispatcher or the end of the job, and returns what is known of both."""
        with self._lock:
            if not 0 <= dispatcher < len(self._dispatchers):
                return {"error": f"there is no dispatcher {dispatcher}; expected 0 to {len(self._dispatchers) - 1}."}
            known = self._dispatchers[dispatcher]
            if address and known not in ("", address):
                return {
                    "error": (
                        f"dispatcher {dispatcher} is at {known}; received {address}. With --dispatcher-side training "
                        "a compute job serves one training job, in which each rank registers once: restart both."
                    )
                }
            self._dispatchers[dispatcher] = address or known
            self._ended |= end
            return {"address": self._dispatchers[dispatcher], "ended": self._ended}


class _Handler(BoundedHandler):
    server: ComputeService

    def do_POST(self) -> None:  # noqa: N802  (the name the library calls it by)
        question = self.read_body(_LARGEST_BYTES)
        if question is None:
            return
        try:
            fields = _opened(self.server.key, "question", question)
        except ValueError as refusal:
            self.answer(_FORBIDDEN, str(refusal))
            return
        number = fields.pop("number")
        try:
            told = self.server.reply(**fields)
        except TypeError:
            told = {"error": "the compute service has a different version of tfdist; install the same version."}
        self.answer(_OK, _sealed(self.server.key, number, {"asker": self.client_address[0], **told}))


class ComputeClient:
    """A client of a `ComputeService`.

    Args:
        addresses: Its addresses; the first that answers is used.
        key: Its key.
        verbose: 2 logs each request at the level "info", less at "debug".
    """

    def __init__(self, addresses: Mapping[str, Sequence[tuple[str, int]]], key: bytes, verbose: int = 1) -> None:
        self._places = [ServiceAddress(host, port, port) for places in addresses.values() for host, port in places]
        self._key = key
        self._level = logging.INFO if verbose >= _LOUD else logging.DEBUG

    @property
    def host(self) -> str:
        """The address of this machine on the route to the service, where other members of the service reach it too."""
        return str(self._ask()["asker"])

    def register_dispatcher(self, dispatcher_id: int, dispatcher_address: str) -> None:
        """Registers the "HOST:PORT" of a dispatcher.

        Raises:
            ConfigError: If the service expects no such dispatcher, or has it at another address.
            PeerLostError: If the service does not answer.
        """
        self._ask(dispatcher=dispatcher_id, address=dispatcher_address)

    def wait_for_dispatcher_registration(self, dispatcher_id: int, timeout: float) -> str:
        """Waits until a dispatcher is registered and returns its "HOST:PORT".

        Raises:
            ConfigError: If the service expects no such dispatcher.
            PeerLostError: If it is not registered within `timeout` seconds, or the service does not answer.
        """
        deadline = time.monotonic() + timeout
        while not (address := self._ask(dispatcher=dispatcher_id)["address"]):
            if time.monotonic() >= deadline:
                raise PeerLostError(
                    f"dispatcher {dispatcher_id} has not registered with the compute service within {timeout:g} s. "
                    "Check why its process, a rank of the compute job or of the training job, has not started, or "
                    "raise the timeout."
                )
            time.sleep(_PAUSE_S)
        return str(address)

    def shutdown(self) -> None:
        """Ends the compute job.

        Raises:
            PeerLostError: If the service does not answer.
        """
        self._ask(end=True)

    def wait_for_shutdown(self) -> None:
        """Waits until the compute job is ended, however long it serves; each request has a deadline.

        Raises:
            PeerLostError: If the service stops answering.
        """
        while not self._ask()["ended"]:
            time.sleep(_END_PERIOD_S)

    def _ask(self, **fields: Any) -> dict[str, Any]:
        _LOG.log(self._level, "tfdist: request to the compute service: %s", fields)
        deadline = time.monotonic() + _REACH_S
        while True:
            reasons = []
            for place in self._places:
                try:
                    told = self._ask_at(place, {"number": secrets.token_hex(16), **fields})
                except (OSError, ValueError) as error:
                    reasons.append(str(error))
                    continue
                if "error" in told:
                    raise ConfigError(told["error"])
                self._places = [place]
                return told
            if time.monotonic() + _PAUSE_S >= deadline:
                raise PeerLostError(
                    f"no compute service answers; tried for {_REACH_S:g} s: {'; '.join(reasons)}. Check whether the "
                    "compute job has ended or is on another machine: without TFDIST_DATA_SERVICE_PRIVATE_NETWORK=1 "
                    "it can only be reached from its own machine."
                )
            time.sleep(_PAUSE_S)

    def _ask_at(self, place: ServiceAddress, question: dict[str, Any]) -> dict[str, Any]:
        body = _sealed(self._key, "question", question).encode()
        code, text = request(place, "POST", "/", _ANSWER_S, body)
        if code != _OK:
            raise ValueError(f"{place.control} answers {code}: {plain(text.decode(errors='replace'))}")
        return _opened(self._key, question["number"], text)


def _sealed(key: bytes, purpose: str, fields: dict[str, Any]) -> str:
    body = json.dumps(fields)
    return f"{_proof(key, purpose, body.encode())}\n{body}"


def _opened(key: bytes, purpose: str, message: bytes) -> dict[str, Any]:
    proof, _, body = message.partition(b"\n")
    if not hmac.compare_digest(proof, _proof(key, purpose, body).encode()):
        raise ValueError("the other side does not have the same key")
    fields: dict[str, Any] = json.loads(body)  # whoever has the key wrote it
    return fields


def _proof(key: bytes, purpose: str, body: bytes) -> str:
    return hmac.digest(key, f"tfdist {purpose}\n".encode() + body, "sha256").hex()
