"""Tests of tfdist.system.process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tfdist.system import process

# A process with a child that ignores SIGTERM and has a session of its own.
FAMILY = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
code = "import time; print('up', flush=True); time.sleep(1000)"
child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
child.wait()
"""
PARENT = """
import signal, subprocess, sys
from tfdist.system.process import before_exec
child = subprocess.Popen(["sleep", "1000"], preexec_fn=before_exec(signal.SIGKILL, own_session=True))
print(child.pid, flush=True)
child.wait()
"""


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_whole_tree_is_ended(wait_until: Callable[..., None]) -> None:
    with subprocess.Popen([sys.executable, "-c", FAMILY], stdout=subprocess.PIPE) as family:
        assert family.stdout is not None
        family.stdout.readline()
        (grandchild,) = process.descendants(family.pid)
        assert family.pid in process.descendants(os.getpid())
        assert process.end_descendants(family.pid, patience_s=0.1)
        wait_until(lambda: _gone(grandchild), seconds=5)
        family.kill()


def test_child_dies_with_its_parent(wait_until: Callable[..., None]) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert os.getsid(child) == child
        parent.kill()
        wait_until(lambda: _gone(child), seconds=5)


def test_nothing_to_end() -> None:
    with subprocess.Popen(["sleep", "1000"]) as leaf:
        assert process.end_descendants(leaf.pid, patience_s=0)
        process.send([leaf.pid], signal.SIGKILL)
    process.send([leaf.pid], signal.SIGKILL)


def test_signals_that_are_ignored_are_not_heeded() -> None:
    script = (
        "import signal\nfrom tfdist.system.process import heeded\n"
        "print(*map(int, heeded((signal.SIGINT, signal.SIGTERM, signal.SIGHUP))))"
    )
    for ignored, heeded in (("", "2 15 1"), ("HUP", "2 15"), ("HUP INT TERM", "15")):
        # A shell cannot take back what was ignored when it began, as under nohup.
        reset = (
            "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_DFL); os.execvp(sys.argv[1], sys.argv[1:])"
        )
        shell = ["sh", "-c", f"trap '' {ignored or 0}; exec \"$@\"", "sh", sys.executable, "-c", script]
        done = subprocess.run(
            [sys.executable, "-c", reset, *shell], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.stdout.split() == heeded.split(), done.stderr


def test_name_of_a_process() -> None:
    script = "from tfdist.system import process\nprocess.call_this_process('tfdist-dispatcher')\n"
    script += "print(open('/proc/self/comm').read(), end='')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout == "tfdist-dispatch\n", done.stderr


def test_orphans_are_reaped_and_the_child_is_not() -> None:
    script = """
import os, subprocess, time
from tfdist.system.process import adopt_orphans, reap_orphans
adopt_orphans()
child = subprocess.Popen(["sh", "-c", "for i in 1 2 3; do (exit 5) & done; sh -c '(:) &'; exit 7"])
os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
try:
    while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT):
        reap_orphans(child)
except ChildProcessError:
    print(child.returncode)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout == "7\n", done.stderr


def test_a_child_that_does_not_heed_is_killed() -> None:
    codes = []
    for heeds in ("DFL", "IGN"):
        code = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_{heeds}); print(flush=True); signal.pause()"
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            child.stdout.readline()
            process.end_child(child, 5 if heeds == "DFL" else 0.1)
            process.end_child(child, 0)  # one that has ended already
        codes.append(child.returncode)
    assert codes == [-signal.SIGTERM, -signal.SIGKILL]


def test_a_leader_is_killed_with_its_group(wait_until: Callable[..., None]) -> None:
    code = FAMILY.replace("start_new_session=True", "").replace("'up'", "'up ' + str(__import__('os').getpid())")
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True) as leader:
        assert leader.stdout is not None
        member = int(leader.stdout.readline().split()[1])
        process.end_child(leader, 0.1)
        wait_until(lambda: _gone(member), seconds=5)
    assert leader.returncode == -signal.SIGKILL


CAUGHT = """
import os, signal
from tfdist.system.process import caught
signal.signal(signal.SIGHUP, signal.SIG_IGN)
before, seen = signal.getsignal(signal.SIGTERM), []
with caught((signal.SIGTERM, signal.SIGHUP), seen.append):
    for signum in (signal.SIGHUP, signal.SIGTERM):
        os.kill(os.getpid(), signum)
assert seen == [signal.SIGTERM]
assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGHUP)) == (before, signal.SIG_IGN)
"""


def test_signals_are_caught_for_a_while(run_script: Callable[..., str]) -> None:
    run_script(CAUGHT)


SIGNALLED = """
import os, signal
from tfdist.system.process import signal_pipe
pipe = signal_pipe((signal.SIGTERM, signal.SIGUSR1))
for signum in (signal.SIGUSR1, signal.SIGTERM):
    os.kill(os.getpid(), signum)
assert list(os.read(pipe, 64)) == [signal.SIGUSR1, signal.SIGTERM]
"""


def test_signals_come_out_of_a_pipe(run_script: Callable[..., str]) -> None:
    run_script(SIGNALLED)
