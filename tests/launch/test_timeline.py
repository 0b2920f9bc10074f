"""Jobs that record: every file is JSON whatever ends its rank, and the lines of docs/timeline.md run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trace_schema

from tfdist.command.timeline import trace_file

DOCS = Path(__file__).resolve().parents[2] / "docs" / "timeline.md"
DEADLINE_S = 180
# What a rank does until all that it did before is in its file, which may take a period of the writer.
FLUSHED = """
import pathlib
def wait_for_the_file(text):
    end = time.monotonic() + 60
    while text not in pathlib.Path(f"run.{rank}.json").read_text():
        assert time.monotonic() < end, "nothing was written"
        time.sleep(0.01)
"""
JOB = (
    """
import numpy as np, tfdist
tfdist.init()
"""
    + FLUSHED
)
LOOP = """
tensors = [np.full(2000, rank + i, "float32") for i in range(3)]
tfdist.grouped_allreduce(tensors, op=tfdist.Sum, name="begin")
wait_for_the_file("begin")
if rank == tfdist.size() - 1:
    {end}
while True:
    tfdist.grouped_allreduce(tensors, op=tfdist.Sum, name="goes on")
"""
TRAIN = """
import keras, numpy as np, tensorflow as tf, tfdist
keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
dataset = tfdist.shard(tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(4))
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(dataset, epochs=2, verbose=0, callbacks=[tfdist.callbacks.DataParallel()])
"""


def read(path: Path) -> trace_file.Trace:
    """A timeline, of which every byte must be JSON and every event as the format has it."""
    assert trace_schema.problems(json.loads(path.read_text())) == []
    return trace_file.read(path)


def names(trace: trace_file.Trace) -> list[str]:
    return [event["name"] for event in trace.of("call")]


@pytest.mark.slice("launch")
@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", 137),
        ("os.abort()", 134),
        ("os._exit(7)", 7),
        ("raise ValueError('the end')", 1),
    ],
    ids=["killed", "aborted", "left", "failed"],
)
def test_every_file_of_a_job_that_is_cut_short_is_whole(launch: Any, end: str, code: int) -> None:
    script = launch.script(JOB + LOOP.format(end=end))
    done = launch.run("-np", "2", "--timeline-filename", "run.json", "python", script)
    assert done.code == code, done.stderr
    for rank in (0, 1):
        trace = read(launch.folder / f"run.{rank}.json")
        assert trace.rank == rank
        assert names(trace)[0] == "allreduce begin"
        assert trace.of("call")[0]["args"]["bytes"] == 3 * 8000


def test_options_reach_the_ranks(launch: Any) -> None:
    script = launch.script(JOB + "tfdist.barrier(name='only')\n")
    words = ("-np", "2", "--timeline-filename", "made/here.json", "--timeline-mark-cycles", "python", script)
    done = launch.run(*words)
    assert done.code == 0, done.stderr
    for rank in (0, 1):
        trace = read(launch.folder / "made" / f"here.{rank}.json")
        assert names(trace) == ["barrier only", "shutdown"]
        assert len(trace.of("cycle")) == 2


def test_a_script_may_start_it_where_the_variable_says_dynamic(launch: Any) -> None:
    lines = "tfdist.start_timeline('run.json')\ntfdist.barrier(name='then')\ntfdist.stop_timeline()\n"
    script = launch.script(JOB + lines)
    done = launch.run("-np", "2", "python", script, variables={"HOROVOD_TIMELINE": "DYNAMIC"})
    assert done.code == 0, done.stderr
    assert [names(read(launch.folder / f"run.{rank}.json")) for rank in (0, 1)] == [["barrier then"]] * 2


@pytest.mark.starter("mpi")
@pytest.mark.slice("launch")
def test_ranks_that_go_on_after_a_loss_go_on_in_their_files(launch: Any) -> None:
    lines = """
from tfdist import errors
from tfdist.world import runtime
tfdist.barrier(name="before")
wait_for_the_file("before")
if rank == 0:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    while True:
        tfdist.barrier(name="until one is lost")
except errors.PeerLostError:
    runtime.renew()
tfdist.barrier(name="afterwards")
"""
    script = launch.script(JOB + lines)
    done = launch.run("-np", "3", "--elastic", "--timeline-filename", "run.json", "python", script)
    assert done.code == 0, done.stderr
    assert "barrier before" in names(read(launch.folder / "run.0.json"))
    for rank in (1, 2):
        trace = read(launch.folder / f"run.{rank}.json")
        assert trace.rank_at(trace.first_ns) == rank
        after = next(event for event in trace.of("call") if event["name"] == "barrier afterwards")
        assert trace.rank_at(trace.begin_ns(after)) == rank - 1


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", DOCS.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.slice("launch")
def test_the_commands_of_the_page_run(tmp_path: Path, all_packages: None) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "path").mkdir()
    python = tmp_path / "path" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (bash,) = blocks("bash")
    folders = [tmp_path / "path", Path(sys.executable).parent, os.environ["PATH"]]
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", bash],
        cwd=tmp_path,
        env=os.environ | {"PATH": os.pathsep.join(map(str, folders))},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("wall s") == 2
    assert "all.json: 2 ranks" in done.stdout
    merged = json.loads((tmp_path / "all.json").read_text())["traceEvents"]
    assert trace_schema.problems(merged) == []
    assert {event["pid"] for event in merged} == {0, 1}
    assert (tmp_path / "shares.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slice("launch")
def test_the_script_of_the_page_runs(launch: Any) -> None:
    """It records the second training of two."""
    (lines,) = blocks("python")
    done = launch.run("-np", "2", "python", launch.script(TRAIN + lines))
    assert done.code == 0, done.stderr
    for rank in (0, 1):
        calls = read(launch.folder / f"steps.{rank}.json").of("call")
        assert sum("bytes" in event["args"] for event in calls) >= 8
