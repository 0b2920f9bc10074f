"""The process of one server, started by a `Supervisor` as `node ROLE`, never by a person.

Standard input carries the order, a line of JSON, and stays open: its end means that the supervisor is gone. Reports go
to the original standard output, one line of JSON each; all other output goes to standard error. SIGTERM ends a
dispatcher and drains a worker; a second one ends it immediately.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from tfdist.data_service.inspection.status import DISPATCHER
from tfdist.errors import TfdistError
from tfdist.system.process import call_this_process

# Exit statuses: as it was told to; a drain that lost elements; a start that would fail alike the next time.
ENDED, LOST, REFUSED = 0, 1, 3
_POLL_S = 0.1
_STOP_S = 3.0


class Node:
    """One server, the signals it gets, and the reports it makes.

    Args:
        role: "dispatcher" or "worker".
        order: "config" (the fields of the role's configuration) and "drain_timeout_s".
        report: Takes one report.
    """

    def __init__(self, role: str, order: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> None:
        self._role, self._order, self._report = role, order, report
        self._serves = False
        self._asked = threading.Event()
        self._asked_again = threading.Event()

    def terminate(self) -> None:
        """Handles SIGTERM. A server that does not serve yet holds nothing, so it just ends."""
        if not self._serves:
            os._exit(ENDED)
        (self._asked_again if self._asked.is_set() else self._asked).set()

    def run(self) -> int:
        """Serves until told to end; returns the exit status."""
        try:
            server = self._make()
        except TfdistError as error:
            self._report({"error": str(error)})
            return REFUSED
        self._serves = True
        self._report({"ready": str(server.service)})
        status = ENDED
        if self._role == DISPATCHER:
            while not self._asked.wait(_POLL_S):
                pass
        else:
            while not self._asked.is_set() and not server.wait_for_request_to_drain(_POLL_S):
                pass
            status = self._drain(server)
        ending = threading.Thread(target=server.stop, daemon=True)
        ending.start()
        ending.join(_STOP_S)  # gRPC waits for calls of trainers that may never end
        return status

    def _drain(self, server: Any) -> int:
        self._asked.set()  # by a request, if not by SIGTERM: the next one is the second
        self._report({"draining": server.address})
        outcome: list[str] = []
        draining = threading.Thread(
            target=lambda: outcome.append(server.drain(self._order["drain_timeout_s"])), daemon=True
        )
        draining.start()
        while draining.is_alive() and not self._asked_again.is_set():
            draining.join(_POLL_S)
        if self._asked_again.is_set():
            self._report({"left": "told to end before it had drained"})
            return ENDED
        if outcome == [""]:
            return ENDED
        self._report({"left": outcome[0] if outcome else "the drain was interrupted"})
        return LOST

    def _make(self) -> Any:
        # TensorFlow takes seconds to import; a signal that comes before must find its handler.
        from tfdist.data_service.server.config import DispatcherConfig, WorkerConfig
        from tfdist.data_service.server.counters import ServingMeter
        from tfdist.data_service.server.server import Dispatcher, Worker

        if self._role == DISPATCHER:
            return Dispatcher(DispatcherConfig(**self._order["config"]))
        return Worker(WorkerConfig(**self._order["config"]), meter=ServingMeter)


def main() -> NoReturn:
    """Runs the order read from standard input."""
    reports = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    lock = threading.Lock()

    def report(fields: dict[str, Any]) -> None:
        with lock:
            reports.write(json.dumps(fields) + "\n")
            reports.flush()

    (role,) = sys.argv[1:]
    call_this_process(f"tfdist-{role}")
    node = Node(role, json.loads(sys.stdin.buffer.readline()), report)
    signal.signal(signal.SIGTERM, lambda *_: node.terminate())
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        sys.stdin.buffer.read()
        os._exit(1)

    threading.Thread(target=watch, name="tfdist-lifeline", daemon=True).start()
    status = node.run()
    sys.stderr.flush()
    # TensorFlow's own threads may not let an ordinary exit come to its end.
    os._exit(status)


if __name__ == "__main__":
    main()
