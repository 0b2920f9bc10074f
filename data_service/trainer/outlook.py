"""What a trainer and its service report to each other: dead or silent workers, and how long the trainer waits.

One thread per service checks it from time to time and leaves a note in the library, which becomes part of the error
when a wait times out. It also reports to the dispatcher the share of recent time that this process waited for data.
"""

from __future__ import annotations

import http.client
import logging
import os
import re
import secrets
import socket
import threading
import time

from tfdist.data_service.inspection import wait_report
from tfdist.data_service.inspection.address import ServiceAddress
from tfdist.data_service.inspection.control_client import request
from tfdist.data_service.inspection.survey import DEAD, UNKNOWN, Survey, survey
from tfdist.data_service.trainer import wait
from tfdist.data_service.trainer.wait_meter import WINDOW_S, WaitMeter
from tfdist.errors import ConfigError, PeerLostError
from tfdist.native import library

_LOG = logging.getLogger("tfdist")
_WINDOW_S = WINDOW_S
_ANSWER_S = 2.0
_watched: set[str] = set()
_lock = threading.Lock()


def keep(service: ServiceAddress) -> None:
    """Keeps the note on a service up to date from now on, until this process ends."""
    with _lock:
        if service.grpc in _watched:
            return
        _watched.add(service.grpc)
    threading.Thread(target=_run, args=(service, wait_report.PERIOD_S), name="tfdist-outlook", daemon=True).start()


def _run(service: ServiceAddress, period_s: float) -> None:
    pause = threading.Event()
    reporter = Reporter(service, own_name(), WaitMeter(_WINDOW_S))
    while True:
        try:
            library.set_service_note(service.grpc, look_at(service))
            reporter.tell()
        except RuntimeError:
            if threading.main_thread().is_alive():
                raise
            return  # the process ends, and starts no further thread to ask a server
        pause.wait(period_s)


def own_name() -> str:
    """A globally unique name for this trainer process."""
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:100]
    return f"{host}:{os.getpid()}:{secrets.token_hex(2)}"


class Reporter:
    """Reports to a dispatcher how long this process waits for its data.

    Args:
        service: The dispatcher.
        name: The name of this trainer.
        meter: Turns counts into shares.
    """

    def __init__(self, service: ServiceAddress, name: str, meter: WaitMeter) -> None:
        self._service, self._name, self._meter = service, name, meter
        self._refusal = ""

    def tell(self) -> None:
        """Measures and reports, if there is anything to report. Failures are only logged."""
        measured = self._meter.add(wait.sample(self._service.grpc, time.monotonic()))
        if measured is None:
            return
        body = wait_report.compose(wait_report.TrainerWait(self._name, *measured))
        try:
            code, text = request(self._service, "POST", wait_report.PATH, _ANSWER_S, body)
        except OSError as error:  # the next report may arrive; the note has said it already
            _LOG.debug("data service: %s", error)
            return
        refusal = "" if code == http.client.OK else text.decode(errors="replace").strip()
        if refusal and refusal != self._refusal:
            _LOG.warning("data service: %s rejected the report of waiting: %s", self._service.control, refusal)
        self._refusal = refusal


def look_at(service: ServiceAddress) -> str:
    """The current note; empty if all is well."""
    try:
        return note_on(survey(service, _ANSWER_S))
    except PeerLostError as error:
        return f"The dispatcher at {service.grpc} does not answer: {error}."
    except ConfigError as error:  # a worker has taken its place
        return f"There is no longer a dispatcher at {service.grpc}: {error}"


def note_on(found: Survey) -> str:
    """The note that follows from a survey."""
    dead = [worker.address for worker in found.workers if worker.state == DEAD]
    silent = [f"{worker.address} ({worker.detail})" for worker in found.workers if worker.state == UNKNOWN]
    alive = len(found.workers) - len(dead) - len(silent)
    parts = []
    if dead:
        parts.append(
            f"Of {len(found.workers)} workers these are dead: {', '.join(dead)}. Restart each at its address, so "
            "that passes over the data can complete."
        )
    if silent:
        parts.append(f"These do not report their status: {', '.join(silent)}.")
    if not found.workers:
        parts.append(f"No worker has registered. Start one: tfdist data-service worker --dispatcher {found.service}")
    elif parts:
        parts.append(f"{alive} are ready.")
    return " ".join(parts)
