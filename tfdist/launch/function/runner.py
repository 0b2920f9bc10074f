"""The program that `tfdist.run` starts to launch its job: tfdistrun, called from a program instead of a terminal.

It is a separate process because a launcher takes over signals, and adopts and terminates all of its descendants, which
must not happen to a script or notebook. It reads the order as JSON from standard input and writes its report to a
descriptor named in the order. Started by path in isolated mode, like `task`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from typing import Any

if not __package__:
    # At the end, so that packages installed next to tfdist do not shadow the standard library.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))

from tfdist.errors import ConfigError, PeerLostError
from tfdist.launch.command import USAGE_ERROR, prepare
from tfdist.launch.option.spelling import in_arguments
from tfdist.launch.wire.call import Call, write_all
from tfdist.system.process import die_with_parent


def carry_out(order: dict[str, Any]) -> int:
    """Runs the job of an order.

    Args:
        order: "words" for tfdistrun; the descriptors "function", "results" (one file for all), "report" and "doors"
            (one, if agents come there); and "arguments", the caller's name for each tfdistrun option.

    Returns:
        The job's exit status.
    """
    try:
        call = Call(order["function"])
        door = next((socket.socket(fileno=descriptor) for descriptor in order["doors"]), None)
        job, console = prepare(order["words"], call, lambda text: in_arguments(text, order["arguments"]), door)
    except (ConfigError, PeerLostError) as error:
        write_all(order["report"], json.dumps({"error": str(error), "lost": isinstance(error, PeerLostError)}).encode())
        return USAGE_ERROR
    with contextlib.closing(console):
        status = job.run()
    answers = call.hand_over(order["results"])
    write_all(order["report"], json.dumps(job.report() | {"answers": answers}).encode())
    return status


def main() -> int:
    order = json.load(sys.stdin)
    for descriptor in (order["function"], order["report"], order["results"], *order["doors"]):
        os.set_inheritable(descriptor, False)
    # The signal is bound to the caller's thread, which waits for us.
    die_with_parent(signal.SIGTERM, order["parent"])
    return carry_out(order)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # before the launcher handles signals: nothing has been started
        sys.exit(128 + signal.SIGINT)
