"""Tests of runner: refused orders; those that are carried out are in tests/launch/test_run.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tfdist.launch.command import USAGE_ERROR
from tfdist.launch.function import runner
from tfdist.launch.wire.call import anonymous_file


@pytest.fixture
def order() -> Any:
    made = [anonymous_file() for _ in range(3)]
    words = {"words": ["-np", "2", "no-such-program"], "arguments": {"-np": "num_proc"}}
    yield words | {"function": made[0], "report": made[1], "results": made[2], "doors": []}
    for descriptor in made:
        os.close(descriptor)


def _report(order: dict[str, Any]) -> Any:
    return json.loads(os.pread(order["report"], 10_000, 0))


def test_what_is_refused_is_reported(order: dict[str, Any]) -> None:
    assert runner.carry_out(order) == USAGE_ERROR
    assert _report(order) == {"error": "no-such-program: no such command on PATH; use its full path", "lost": False}


def test_as_a_program(order: dict[str, Any]) -> None:
    command = [sys.executable, "-I", "-S", str(Path(runner.__file__).resolve())]
    text = json.dumps(order | {"parent": os.getpid()})
    given = (order["function"], order["report"], order["results"])
    done = subprocess.run(command, input=text, pass_fds=given, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (USAGE_ERROR, "", "")
    assert list(_report(order)) == ["error", "lost"]


def test_ends_with_its_caller(order: dict[str, Any]) -> None:
    """The caller has gone before the program could ask to be told of it."""
    command = [sys.executable, "-I", "-S", str(Path(runner.__file__).resolve())]
    text = json.dumps(order | {"parent": os.getpid() + 1})
    given = (order["function"], order["report"], order["results"])
    done = subprocess.run(command, input=text, pass_fds=given, capture_output=True, text=True, timeout=60)
    assert done.returncode < 0
    assert os.fstat(order["report"]).st_size == 0
