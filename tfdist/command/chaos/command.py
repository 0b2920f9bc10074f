"""The `tfdist chaos` command: options, the loop, the exit status."""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from tfdist.command.chaos.plan import KINDS, Fault, Plan, seconds
from tfdist.command.chaos.victim import ranks_below
from tfdist.errors import ConfigError
from tfdist.system.process import caught
from tfdist.system.terminal.command_line import Parser, whole

_DESCRIPTION = """\
Runs a tfdistrun job and injects faults: kills or stops ranks on this machine, chosen at random.

examples:
  tfdist chaos --kill-rank-every 30s -- tfdistrun -np 4 --elastic python train.py
  tfdist chaos --stop-rank-every 2m --most 1 -- tfdistrun -np 4 --elastic python train.py
"""

_EPILOG = """\
The exit status is that of the job. The same --seed chooses the same ranks again, as long as the same ranks are running.
"""

_USAGE = "tfdist chaos --kill-rank-every TIME [options] -- COMMAND [ARGUMENTS...]"


def main(words: Sequence[str]) -> int:
    """Returns the exit status of the job. Raises ConfigError for invalid options."""
    known = parser().parse_args(words)
    every = {kind: seconds(text) for kind in KINDS if (text := getattr(known, kind)) is not None}
    command = known.command[1:] if known.command[:1] == ["--"] else known.command
    if not every:
        raise ConfigError(f"no fault given; try --kill-rank-every 30s\nusage: {_USAGE}")
    if not command:
        raise ConfigError(
            f"no job given; write it after --, as in: -- tfdistrun -np 4 --elastic python train.py\nusage: {_USAGE}"
        )
    seed = random.SystemRandom().randrange(1 << 32) if known.seed is None else known.seed
    _say(f"--seed {seed}")
    return _run(command, Plan(every, known.most, seed))


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = Parser(prog="tfdist chaos", usage=_USAGE, description=_DESCRIPTION, epilog=_EPILOG)
    made.add_argument(
        "--kill-rank-every", dest="kill", metavar="TIME", help="send SIGKILL, as when memory runs out: 30s, 2m"
    )
    made.add_argument("--stop-rank-every", dest="stop", metavar="TIME", help="send SIGSTOP: the rank hangs")
    made.add_argument("--end-rank-every", dest="end", metavar="TIME", help="send SIGTERM, as a scheduler does")
    made.add_argument(
        "--most", type=whole("a number of faults", 1), metavar="N", help="stop after N faults (default: no limit)"
    )
    made.add_argument("--seed", type=int, metavar="N", help="seed for choosing ranks (default: a new one each time)")
    made.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return made


def _run(command: Sequence[str], plan: Plan) -> int:
    try:
        job = subprocess.Popen(command)
    except OSError as error:
        raise ConfigError(f"{command[0]} cannot be run: {error.strerror}") from None
    begin = time.monotonic()
    # Ctrl-C reaches the job by itself, and we stay to tell its status.
    with caught((signal.SIGTERM,), job.send_signal), caught((signal.SIGINT,), lambda _: None):
        while job.poll() is None:
            fault = plan.next
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.wait(None if fault is None else max(0.0, begin + fault.at - time.monotonic()))
            if job.poll() is None and fault is not None:
                _make(fault, plan, job.pid)
    return job.returncode if job.returncode >= 0 else 128 - job.returncode


def _make(fault: Fault, plan: Plan, root: int) -> None:
    processes = ranks_below(root)
    rank = plan.do(fault, list(processes))
    if rank is None:
        _say(f"after {fault.at:g} s: no rank is running on this machine")
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(processes[rank], KINDS[fault.kind])
    _say(f"after {fault.at:g} s: {KINDS[fault.kind].name} to rank {rank} (process {processes[rank]})")


def _say(text: str) -> None:
    print(f"tfdist chaos: {text}", file=sys.stderr, flush=True)
