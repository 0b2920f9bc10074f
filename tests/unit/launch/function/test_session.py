"""Tests of tfdist.launch.function.session with programs that take the place of the launcher."""

from __future__ import annotations

import io
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from tfdist.errors import ConfigError
from tfdist.launch.function import session
from tfdist.launch.wire.call import write_all

READ_ORDER = "import json, os, sys\norder = json.load(sys.stdin)\n"


@pytest.fixture(autouse=True)
def _no_descriptor_is_left(descriptors_close: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    with descriptors_close():
        yield


def _launch(monkeypatch: pytest.MonkeyPatch, program: str) -> tuple[int, Any, list[bytes]]:
    monkeypatch.setattr(session, "PROGRAM", (sys.executable, "-c", READ_ORDER + program))
    with session.files(3) as (function, *results):
        write_all(function, b"function")
        status, report = session.launch(["-np", "2"], {"-np": "ranks"}, function, results)
        return status, report, [session.read_all(result) for result in results]


def test_what_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        "assert os.pread(order['function'], 99, 0) == b'function'\n"
        "for rank, result in enumerate(order['results']): os.write(result, b'%d' % rank)\n"
        "own = os.getsid(0) == os.getpid() and os.getppid() == order['parent']\n"
        "os.write(order['report'], json.dumps([order['words'], order['arguments'], own]).encode())\nsys.exit(5)\n"
    )
    assert _launch(monkeypatch, program) == (5, [["-np", "2"], {"-np": "ranks"}, True], [b"0", b"1"])


def test_launcher_that_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _launch(monkeypatch, "os.kill(os.getpid(), 9)") == (-9, None, [b"", b""])


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


def test_too_many_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda what: (1024, 4096))
    with session.files(300) as made:
        assert len(made) == 300
    with pytest.raises(ConfigError, match="this many ranks need 1064 open files, but this process may have only 1024"):
        with session.files(500):
            pass
