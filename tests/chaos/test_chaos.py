"""Jobs with faults that `tfdist chaos` makes: the right process has them, and an elastic training survives."""

import contextlib
import os
import re
import sys
from pathlib import Path

import pytest
from elastic_job import run

pytestmark = pytest.mark.slice("launch")


def processes_in(folder):
    """Those whose working folder it is, as that of every process of a job that was started there."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            found += [place.parent.name] if os.readlink(place) == str(folder) else []
    return found


STAYS = "import os, time\nprint('rank', os.environ['RANK'], flush=True)\nwhile True: time.sleep(0.05)\n"


@pytest.mark.parametrize(("option", "name", "status"), [("kill", "SIGKILL", 137), ("end", "SIGTERM", 143)])
def test_a_rank_is_hit_and_nobody_else(tmp_path, option, name, status):
    (tmp_path / "stays.py").write_text(STAYS)
    job = ("-m", "tfdist.launch", "-np", "3", sys.executable, "stays.py")
    chaos = (f"--{option}-rank-every", "2s", "--most", "1", "--seed", "3")
    done = run(tmp_path, "-m", "tfdist.command", "chaos", *chaos, "--", sys.executable, *job)
    assert done.returncode == status, done.stderr
    (victim,) = re.findall(rf"tfdist chaos: after \d+ s: {name} to rank (\d) \(process \d+\)\n", done.stderr)
    assert re.search(rf"rank {victim} on \S+ failed first: killed by {name}", done.stderr)
    assert processes_in(tmp_path) == []


# Runs on until a rank is lost, and a little further.
GOES_ON = """\
import tensorflow as tf, tfdist

tfdist.init()


@tfdist.elastic.run
def train(state):
    while tfdist.size() == 3:
        tfdist.allreduce(1.0)
        state.step += 1
        state.commit()


train(tfdist.elastic.ObjectState(step=0))
print("went on", flush=True)
"""
# All ranks have imported TensorFlow by then.
FIRST_FAULT_S = 30


def test_an_elastic_job_survives(tmp_path):
    (tmp_path / "goes_on.py").write_text(GOES_ON)
    job = ("-m", "tfdist.launch", "-np", "3", "--elastic", sys.executable, "goes_on.py")
    words = (
        "-m",
        "tfdist.command",
        "chaos",
        "--kill-rank-every",
        f"{FIRST_FAULT_S}s",
        "--most",
        "1",
        "--",
        sys.executable,
        *job,
    )
    done = run(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    (victim,) = re.findall(r"tfdist chaos: after \d+ s: SIGKILL to rank (\d)", done.stderr)
    assert f"tfdistrun: rank {victim} (" in done.stderr
    assert done.stdout.count("went on") == 2
