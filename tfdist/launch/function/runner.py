"""The program that `tfdist.run` starts to launch its job: tfdistrun for a program instead of a terminal.

It is a process of its own because a launcher takes over signals and adopts and ends all that descends from it, which a
script or notebook must not suffer. Its standard input is the order, as JSON; its report goes to a descriptor named
there. Started by its path in isolated mode, as `task` is.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from typing import Any

if not __package__:
    # At the end, so that whatever is installed beside tfdist does not shadow the standard library.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))

from tfdist.errors import ConfigError
from tfdist.launch.command import USAGE_ERROR, prepare
from tfdist.launch.option.spelling import in_arguments
from tfdist.launch.wire.call import Call, write_all
from tfdist.system.process import die_with_parent


def carry_out(order: dict[str, Any]) -> int:
    """Runs the job of an order.

    Args:
        order: "words" of tfdistrun, and descriptors: "function", "results" by rank, and "report"; and the "arguments"
            of the caller for options of tfdistrun.

    Returns:
        The job's exit status.
    """
    try:
        call = Call(order["function"], order["results"])
        launcher, console = prepare(order["words"], call, lambda text: in_arguments(text, order["arguments"]))
    except ConfigError as error:
        write_all(order["report"], json.dumps({"error": str(error)}).encode())
        return USAGE_ERROR
    with contextlib.closing(console):
        status = launcher.run()
    write_all(order["report"], json.dumps(launcher.report()).encode())
    return status


def main() -> int:
    order = json.load(sys.stdin)
    for descriptor in (order["function"], order["report"], *order["results"]):
        os.set_inheritable(descriptor, False)
    # It is the caller's thread that is meant, and that one waits for us.
    die_with_parent(signal.SIGTERM, order["parent"])
    return carry_out(order)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # before the launcher listens to signals: nothing has been started
        sys.exit(128 + signal.SIGINT)
