"""One server of the data service in the foreground: supervised, and drained by SIGTERM. Parses no options."""

from __future__ import annotations

import os
import signal
from typing import Any

from tfdist.data_service.process.log import Log
from tfdist.data_service.process.restart import RestartPolicy
from tfdist.data_service.process.supervisor import FAILED, Supervisor
from tfdist.system.process import heeded, signal_pipe

_STEP_S = 1.0
FAILURE = 1


def serve(role: str, config: dict[str, Any], policy: RestartPolicy, drain_timeout_s: float) -> int:
    """Runs a server in its own process until it is asked to end.

    SIGTERM and Ctrl-C end a dispatcher and drain a worker; a second one ends it immediately, as does the first one on a
    worker that already drains on request. However this process ends, the server's process ends too.

    Args:
        role: "dispatcher" or "worker".
        config: The fields of the role's configuration.
        policy: How often it may fail.
        drain_timeout_s: Seconds a worker may take to drain.

    Returns:
        0 if it ended on request, 1 if it could not start, failed too often, or lost elements in a drain.
    """
    log = Log()
    supervisor = Supervisor(policy, drain_timeout_s, log.show, end_key="Ctrl-C")
    signals = signal_pipe(heeded((signal.SIGTERM, signal.SIGINT, signal.SIGHUP)))
    member = supervisor.add(role, role, config)

    def end() -> None:
        for _ in os.read(signals, 64):
            supervisor.terminate(member)

    supervisor.watch(signals, end)
    try:
        while not member.over:
            supervisor.step(_STEP_S)
    finally:
        supervisor.end()
        log.close()
    return FAILURE if member.state == FAILED else min(abs(member.code), FAILURE)
