"""Cores of a process, in processes of their own: what is limited stays so."""

import json
import os
import subprocess
import sys

import pytest

from tfdist.data_service.server import core
from tfdist.errors import ConfigError

# The thread that is there before must be limited as well as the one that comes after.
LIMIT = """
import json, os, sys, threading
from tfdist.data_service.server import core
started, ended = threading.Event(), threading.Event()
older = threading.Thread(target=lambda: (started.set(), ended.wait()))
older.start()
started.wait()
chosen = core.limit(int(sys.argv[1]))
newer = threading.Thread(target=ended.wait)
newer.start()
masks = [sorted(os.sched_getaffinity(int(task))) for task in os.listdir("/proc/self/task")]
print(json.dumps([chosen, masks]), flush=True)
sys.stdin.read()
ended.set()
"""
CORES = sorted(os.sched_getaffinity(0))


@pytest.fixture
def limited():
    """Starts a process that limits itself: what it chose, and what each of its threads may use."""
    made = []

    def start(cores):
        command = [sys.executable, "-c", LIMIT, str(cores)]
        made.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return json.loads(made[-1].stdout.readline())

    yield start
    for process in made:
        process.communicate("")


@pytest.mark.parametrize("cores", sorted({1, len(CORES)}))
def test_all_threads_are_limited(limited, cores):
    chosen, masks = limited(cores)
    assert len(chosen) == cores and set(chosen) <= set(CORES)
    assert masks == [chosen] * 3


@pytest.mark.skipif(len(CORES) < 2, reason="one core has nothing to choose from")
def test_processes_take_different_cores_while_there_are_any(limited):
    chosen = [limited(1)[0] for _ in CORES]
    assert sorted(map(tuple, chosen)) == [(number,) for number in CORES]
    assert len(limited(1)[0]) == 1


def test_more_than_there_are_is_refused():
    with pytest.raises(ConfigError, match=f"cores is {len(CORES) + 1}, but this process may use only {len(CORES)}"):
        core.check(len(CORES) + 1)
    with pytest.raises(ConfigError, match="Give a smaller number"):
        core.limit(len(CORES) + 1)
    assert sorted(os.sched_getaffinity(0)) == CORES
    core.check(len(CORES))


def test_a_process_that_may_use_less_has_less(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    assert core.available() == 1
    with pytest.raises(ConfigError, match="may use only 1"):
        core.check(2)
