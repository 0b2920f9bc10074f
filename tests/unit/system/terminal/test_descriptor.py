"""Tests of tfdist.system.terminal.descriptor, in processes whose standard streams are closed."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest

PROGRAM = """
import os, socket, subprocess, sys
from tfdist.system.terminal import descriptor
descriptor.{call}()
(end, other) = socket.socketpair()
assert min(end.fileno(), other.fileno()) > 2
assert [os.get_inheritable(number) for number in (0, 1, 2)] == [True] * 3
assert os.read(0, 1) == b""
subprocess.run([sys.executable, "-c", "import os; [os.fstat(number) for number in (0, 1, 2)]"], check=True)
if "{call}" == "open_streams":
    print("out", flush=True)
    print("err", file=sys.stderr, flush=True)
    assert sys.stdin.read() == ""
os._exit(7)
"""
CLOSED = [set(closed) for many in range(4) for closed in itertools.combinations((0, 1, 2), many)]


@pytest.mark.parametrize("call", ["fill_closed", "open_streams"])
@pytest.mark.parametrize("closed", CLOSED, ids=str)
def test_closed_streams_lead_to_nowhere(closed: set[int], call: str) -> None:
    shut = " ".join(f"{number}>&-" for number in sorted(closed))
    command = ["sh", "-c", f'exec "$@" {shut}', "sh", sys.executable, "-c", PROGRAM.format(call=call)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert done.returncode == 7, done.stderr
    prints = call == "open_streams"
    assert done.stdout == ("out\n" if prints and 1 not in closed else "")
    assert done.stderr == ("err\n" if prints and 2 not in closed else "")
