"""A server in the foreground, played by a small script: which signals end it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# It waits for a signal that is blocked: a handler that runs just before pause() would leave it there.
PLAYER = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
sys.stdin.readline()
os.write(1, b'{"ready": "127.0.0.1:7001/7002"}\\n')
signal.sigwait({signal.SIGTERM})
"""
PROGRAM = """
import functools, sys
from tfdist.data_service.process import serving
from tfdist.data_service.process.restart import RestartPolicy
serving.Supervisor = functools.partial(serving.Supervisor, program=sys.argv[1:])
sys.exit(serving.serve("worker", {"number": 1}, RestartPolicy(limit=0), 5.0))
"""
# Ignores these signals and no other, whatever those who started the tests ignore.
CALLER = """
import os, signal, sys
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN if str(int(number)) in sys.argv[1].split() else signal.SIG_DFL)
os.execv(sys.argv[2], sys.argv[2:])
"""
CAUGHT = {signal.SIGHUP, signal.SIGINT, signal.SIGTERM}


def signals(pid, kind):
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(kind)]
    bits = int(line.split()[1], 16)
    return {number for number in CAUGHT if bits >> (number - 1) & 1}


@pytest.mark.parametrize("ignored", [set(), {signal.SIGHUP}, {signal.SIGHUP, signal.SIGINT}])
def test_signals_that_the_caller_ignores_stay_ignored(ignored):
    caller = (sys.executable, "-c", CALLER, " ".join(str(int(number)) for number in ignored))
    words = [*caller, sys.executable, "-c", PROGRAM, sys.executable, "-c", PLAYER]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as server:
        try:
            while "ready" not in server.stderr.readline():
                assert server.poll() is None
            assert signals(server.pid, "SigIgn") == ignored
            assert signals(server.pid, "SigCgt") == CAUGHT - ignored
            os.kill(server.pid, signal.SIGTERM)
            assert server.wait(30) == 0
        finally:
            server.kill()


def test_nobody_who_does_not_read_its_log_holds_it_up(tmp_path, wait_until):
    flood = "for _ in range(20000): os.write(2, b'x' * 99 + b'\\n')\nopen('written', 'w').close()\n"
    player = PLAYER.replace("signal.sigwait", flood + "signal.sigwait")
    words = [sys.executable, "-c", PROGRAM, sys.executable, "-c", player]
    with subprocess.Popen(words, stderr=subprocess.PIPE, cwd=tmp_path) as server:
        wait_until((tmp_path / "written").exists, what="all lines")
        os.kill(server.pid, signal.SIGTERM)
        assert server.wait(30) == 0
        assert 0 < len(server.stderr.read()) < 1_200_000
