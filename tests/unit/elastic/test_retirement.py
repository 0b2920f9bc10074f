"""Tests of tfdist.elastic.retirement, in processes of their own, which are told to end."""

import os
import signal
import subprocess
import sys

import pytest

from tfdist.elastic import retirement

# The module alone, without TensorFlow.
HEAD = f"""
import os, signal, sys, threading
sys.path.append({os.path.dirname(retirement.__file__)!r})
import retirement

def tell():
    os.kill(os.getpid(), signal.SIGTERM)

"""
WAITS = """
with retirement.at_next_commit():
    assert not retirement.is_due()
    tell()
    assert retirement.is_due()
    print("still there", flush=True)
"""
OWN = """
signal.signal(signal.SIGTERM, lambda *_: print("own", flush=True))
with retirement.at_next_commit():
    tell()
    assert not retirement.is_due()
tell()
"""
OWN_LATER = """
with retirement.at_next_commit():
    signal.signal(signal.SIGTERM, lambda *_: print("own", flush=True))
tell()
"""
FORKED = """
import multiprocessing, time
with retirement.at_next_commit():
    children = [multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,)) for _ in range(20)]
    for child in children:
        child.start()
        child.terminate()  # the child has hardly begun
    for child in children:
        child.join(5)
    print({child.exitcode for child in children}, retirement.is_due(), flush=True)
    for child in children:
        child.kill()
    tell()
    assert retirement.is_due()
    raise SystemExit(75)
"""
IN_A_THREAD = """
def train():
    with retirement.at_next_commit():
        tell()
        print("still there", flush=True)

thread = threading.Thread(target=train)
thread.start()
thread.join()
"""


@pytest.mark.parametrize(
    ("script", "said", "status"),
    [
        (WAITS + "    raise SystemExit(75)", "still there\n", 75),
        (WAITS + "print('never')", "still there\n", -signal.SIGTERM),
        (WAITS + "    tell()\n    print('never')", "still there\n", -signal.SIGTERM),
        (WAITS + "    raise SystemError('an error is not hidden')", "still there\n", 1),
        ("with retirement.at_next_commit(): pass\ntell()\nprint('never')", "", -signal.SIGTERM),
        (OWN, "own\nown\n", 0),
        (OWN_LATER, "own\n", 0),
        (FORKED, "{-15} False\n", 75),
        (IN_A_THREAD, "", -signal.SIGTERM),
    ],
    ids=["leaves", "no commit", "told twice", "error", "not told", "own handler", "set later", "forked", "thread"],
)
def test_sigterm(script, said, status):
    done = subprocess.run(
        [sys.executable, "-c", HEAD + script], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.stdout, done.returncode) == (said, status), done.stderr
    assert ("an error is not hidden" in done.stderr) == (status == 1)
