"""Where the processes of a compute job and of a training job meet: dispatchers are entered and found, the end is told.

A question is an HTTP request. It and its answer are JSON behind a proof by the key that both sides share (HMAC-SHA256);
the key never crosses. The proof of an answer holds the number of its question, which is used once, so that a recorded
one fits no other. A recorded question may be asked again, which changes nothing. No data passes here, and no worker is
known: how many there are tells their dispatcher.
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
    """The meeting point, as threads of this process until `stop`.

    Args:
        dispatchers: How many there will be.
        key: What all who come have; `secrets.token_bytes(32)`.
        local: Whether only this machine is to reach it.

    Attributes:
        addresses: By network interface, the addresses and ports it is reached at.

    Raises:
        ConfigError: If this machine has no address for others.
    """

    def __init__(self, dispatchers: int, key: bytes, local: bool = True) -> None:
        reached = {name: at for name, at in interface.addresses().items() if is_loopback(at) == local}
        if not reached:
            raise ConfigError("this machine has no IPv4 address for other machines; see `ip -4 address`.")
        super().__init__(socket.create_server(("127.0.0.1" if local else "", 0), backlog=_BACKLOG), _Handler)
        self.addresses = {name: [(at, int(self.server_address[1]))] for name, at in reached.items()}
        self.key, self._dispatchers, self._ended = key, [""] * dispatchers, False
        self._lock = threading.Lock()
        self.start("tfdist-compute-service")

    def reply(self, dispatcher: int = 0, address: str = "", end: bool = False) -> dict[str, Any]:
        """Takes what is told of a dispatcher and of the end, and tells what is known of them."""
        with self._lock:
            if not 0 <= dispatcher < len(self._dispatchers):
                return {"error": f"there is no dispatcher {dispatcher}; expected 0 to {len(self._dispatchers) - 1}."}
            known = self._dispatchers[dispatcher]
            if address and known not in ("", address):
                return {
                    "error": f"dispatcher {dispatcher} is at {known}; received {address}. With --dispatcher-side "
                    "training a compute job serves one training job, in which each rank enters once: start both again."
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
            told = {"error": "the compute service is of another version; install the same one."}
        self.answer(_OK, _sealed(self.server.key, number, {"asker": self.client_address[0], **told}))


class ComputeClient:
    """Asks a `ComputeService`.

    Args:
        addresses: Its addresses; the first that answers is used.
        key: Its key.
        verbose: 2 logs each question at the level "info", less at "debug".
    """

    def __init__(self, addresses: Mapping[str, Sequence[tuple[str, int]]], key: bytes, verbose: int = 1) -> None:
        self._places = [ServiceAddress(host, port, port) for places in addresses.values() for host, port in places]
        self._key = key
        self._level = logging.INFO if verbose >= _LOUD else logging.DEBUG

    @property
    def host(self) -> str:
        """The address of this machine on the way to the service: under it others of the service find it too."""
        return str(self._ask()["asker"])

    def register_dispatcher(self, dispatcher_id: int, dispatcher_address: str) -> None:
        """Enters the "HOST:PORT" of a dispatcher.

        Raises:
            ConfigError: If the service expects no such dispatcher, or has it at another address.
            PeerLostError: If the service does not answer.
        """
        self._ask(dispatcher=dispatcher_id, address=dispatcher_address)

    def wait_for_dispatcher_registration(self, dispatcher_id: int, timeout: float) -> str:
        """The "HOST:PORT" of a dispatcher, once it has been entered.

        Raises:
            ConfigError: If the service expects no such dispatcher.
            PeerLostError: If it is not entered within `timeout` seconds, or the service does not answer.
        """
        deadline = time.monotonic() + timeout
        while not (address := self._ask(dispatcher=dispatcher_id)["address"]):
            if time.monotonic() >= deadline:
                raise PeerLostError(
                    f"dispatcher {dispatcher_id} has not come to the compute service within {timeout:g} s. Look why "
                    "its process, a rank of the compute job or of the training job, has not started, or raise the "
                    "timeout."
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
        """Waits until somebody ends the compute job, however long it serves; each question on the way has a bound.

        Raises:
            PeerLostError: If the service does not answer any more.
        """
        while not self._ask()["ended"]:
            time.sleep(_END_PERIOD_S)

    def _ask(self, **fields: Any) -> dict[str, Any]:
        _LOG.log(self._level, "tfdist: asks the compute service: %s", fields)
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
                    f"no compute service answers; tried {_REACH_S:g} s: {'; '.join(reasons)}. Has the compute job "
                    "ended, or is it on another machine? One without TFDIST_DATA_SERVICE_PRIVATE_NETWORK=1 is reached "
                    "from its own machine only."
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
        raise ValueError("the other side does not have this key")
    fields: dict[str, Any] = json.loads(body)  # whoever has the key wrote it
    return fields


def _proof(key: bytes, purpose: str, body: bytes) -> str:
    return hmac.digest(key, f"tfdist {purpose}\n".encode() + body, "sha256").hex()
