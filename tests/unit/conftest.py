"""What unit tests share: a script in a process of its own, where nothing has been imported or started."""

from __future__ import annotations

import itertools
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest

CHILD_SECONDS = 60


@pytest.fixture(autouse=True)
def _process_of_all_tests() -> Iterator[None]:
    """Fails a test that changes for good how this process exits: the tests after it would meet that."""
    before = sys.exit
    yield
    assert sys.exit is before, "this test calls tfdist.init() in the process of all tests: use run_script"


@pytest.fixture(scope="session")
def collective_ops() -> set[str]:
    """The names of all ops that the library registers, but for those of tf.data pipelines."""
    from tfdist.native import adapter

    registered = {name for name in vars(adapter.ops()) if name.startswith("Tfdist")}
    of_pipelines = {"TfdistReadRows", "TfdistServedDataset", "TfdistWatchedDataset"}
    assert of_pipelines < registered
    return registered - of_pipelines


@pytest.fixture
def run_script(tmp_path: Path) -> Callable[..., str]:
    """Runs a script, fails with its errors, and returns them: `run_script("assert 1 == 1", NAME="value")`."""

    def run(script: str, **environment: str) -> str:
        result = subprocess.run(
            [sys.executable, "-c", script],
            cwd=tmp_path,
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"} | environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        return result.stderr

    return run


def _signal_of(child: Callable[[], object]) -> int:
    """Runs a function in a copy of this process; the signal that ended it, or 0."""
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(CHILD_SECONDS)
            child()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the child has failed"
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def _kill_at(number: int, modules: tuple[ModuleType, ...]) -> None:
    """Kills this process before the line of these modules that is executed as the one of this number."""
    files = {module.__file__ for module in modules}
    lines = itertools.count(1)

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename not in files:
            return None
        if event == "line" and next(lines) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)


@pytest.fixture
def killed_everywhere(tmp_path: Path) -> Callable[..., int]:
    """Has a write killed by SIGKILL before each of its lines, and after each so many bytes that it writes.

    `prepare(folder)` comes before, `write(folder)` is killed, `check(folder)` comes after. Returns how often.
    """

    def run(
        prepare: Callable[[Path], object],
        write: Callable[[Path], object],
        check: Callable[[Path], object],
        modules: tuple[ModuleType, ...],
        sizes: range,
    ) -> int:
        def attempt(name: str, begin: Callable[[], object]) -> int:
            folder = tmp_path / name
            folder.mkdir(mode=0o700)
            prepare(folder)
            ended_by = _signal_of(lambda: (begin(), write(folder)))
            check(folder)
            return ended_by

        for number in itertools.count(1):
            ended_by = attempt(f"line-{number}", lambda at=number: _kill_at(at, modules))  # type: ignore[misc]
            if not ended_by:
                break
            assert ended_by == signal.SIGKILL
        for size in sizes:

            def begin(most: int = size) -> None:
                signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # ends a process that writes beyond the limit
                resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

            assert attempt(f"byte-{size}", begin) == signal.SIGXFSZ
        return number - 1

    return run
