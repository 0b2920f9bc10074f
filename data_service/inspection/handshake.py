"""What a process checks before it uses a data service: that it is reachable and has the same versions."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import tensorflow as tf

from tfdist import __version__
from tfdist.data_service.inspection.address import ServiceAddress
from tfdist.data_service.inspection.status import Status
from tfdist.data_service.inspection.survey import Server, Survey, survey, unreachable
from tfdist.errors import ConfigError, PeerLostError

DEADLINE_S = 15.0
_ATTEMPT_S = 2.0
_PAUSE_S = 0.2
_T = TypeVar("_T")


def shake_hands(service: str, deadline_s: float = DEADLINE_S) -> Survey:
    """Surveys a service, waiting for it if it is still starting, and compares versions.

    Args:
        service: "HOST:PORT" of the dispatcher, or "HOST:PORT/CONTROL".
        deadline_s: Seconds to wait for the dispatcher.

    Returns:
        The survey.

    Raises:
        ConfigError: If the address is invalid, or a server has another version of TensorFlow or tfdist.
        PeerLostError: If the dispatcher does not answer in time.
    """
    address = ServiceAddress.parse(service)
    found = wait_for(address, lambda seconds: survey(address, seconds), deadline_s)
    for server in (found.dispatcher, *found.workers):
        check_versions(server)
    return found


def wait_for(address: ServiceAddress, attempt: Callable[[float], _T], deadline_s: float) -> _T:
    """Repeats an attempt until it does not raise PeerLostError.

    Args:
        address: The address to wait for.
        attempt: Function of the seconds that each of its two steps may take.
        deadline_s: Seconds after which no attempt continues.

    Raises:
        PeerLostError: If no attempt has succeeded by then.
    """
    start = time.monotonic()
    while True:
        left_s = start + deadline_s - time.monotonic()
        try:
            return attempt(max(_PAUSE_S, min(_ATTEMPT_S, left_s / 2)))
        except PeerLostError as error:
            waited = time.monotonic() - start
            if waited + 2 * _PAUSE_S >= deadline_s:
                raise unreachable(address, waited, str(error)) from None
        time.sleep(_PAUSE_S)


def check_versions(server: Server, tfdist: str = __version__, tensorflow: str = tf.__version__) -> None:
    """Compares a server's versions with this process's; a server without a status is not checked.

    Raises:
        ConfigError: If they differ: a dataset is a graph, which another TensorFlow may run differently or not at all.
    """
    found = server.status
    if found is not None and (found.tfdist, found.tensorflow) != (tfdist, tensorflow):
        raise ConfigError(_difference(found, tfdist, tensorflow))


def _difference(found: Status, tfdist: str, tensorflow: str) -> str:
    return (
        f"the {found.role} at {found.address} has tfdist {found.tfdist} and TensorFlow {found.tensorflow}; this "
        f"process has tfdist {tfdist} and TensorFlow {tensorflow}. Install the same versions on both sides."
    )
