"""Tests of tfdist.launch.function.session with programs that take the place of the launcher."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from tfdist.launch.function import session
from tfdist.launch.wire.call import write_all

READ_ORDER = "import json, os, sys\norder = json.load(sys.stdin)\n"


@pytest.fixture(autouse=True)
def _no_descriptor_is_left(descriptors_close: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    with descriptors_close():
        yield


def _launch(monkeypatch: pytest.MonkeyPatch, program: str) -> tuple[int, Any, dict[int, bytes]]:
    monkeypatch.setattr(session, "PROGRAM", (sys.executable, "-c", READ_ORDER + program))
    with session.files(1) as (function,):
        write_all(function, b"function")
        return session.launch(["-np", "2"], {"-np": "ranks"}, function)


def test_what_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        "assert os.pread(order['function'], 99, 0) == b'function'\n"
        "os.write(order['results'], b'onethree')\n"
        "own = os.getsid(0) == os.getpid() and os.getppid() == order['parent']\n"
        "found = {'given': [order['words'], order['arguments'], own], 'answers': [[1, 3], [3, 5], [4, 0]]}\n"
        "os.write(order['report'], json.dumps(found).encode())\nsys.exit(5)\n"
    )
    status, report, answers = _launch(monkeypatch, program)
    assert (status, report["given"]) == (5, [["-np", "2"], {"-np": "ranks"}, True])
    assert answers == {1: b"one", 3: b"three", 4: b""}


def test_launcher_that_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _launch(monkeypatch, "os.kill(os.getpid(), 9)") == (-9, None, {})


def test_interrupted_caller_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Interrupted(subprocess.Popen):  # type: ignore[type-arg]
        """The caller is interrupted once, while it waits."""

        def wait(self, timeout: float | None = None) -> int:
            if self not in started:
                started.append(self)
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr(session.subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        _launch(monkeypatch, "import signal\nsignal.pause()")
    # It had no handler yet, or Python's own.
    assert started[0].returncode in (-2, 1, 130)


def test_output_on_a_stream_that_is_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    # A character that is cut in two by the reads, and one that is none.
    program = "os.write(1, b'a\\xc3')\nos.write(1, b'\\xa9' * 1 + b'x' * 100000)\nos.write(2, b'\\xff!')"
    assert _launch(monkeypatch, program)[0] == 0
    assert out.getvalue() == "aé" + "x" * 100000
    assert err.getvalue() == "\ufffd!"


@pytest.mark.parametrize("stream", [None, io.StringIO()])
def test_streams_that_take_nothing(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO | None) -> None:
    if stream is not None:
        stream.close()
    monkeypatch.setattr(sys, "stdout", stream)
    assert _launch(monkeypatch, "os.write(1, b'x' * 1000000)")[0] == 0


def test_streams_of_the_interpreter_are_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    with session.output(sys.__stdout__) as descriptor:
        assert sys.__stdout__ is not None
        assert descriptor == sys.__stdout__.fileno()
