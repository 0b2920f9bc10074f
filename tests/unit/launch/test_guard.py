"""Tests of tfdist.launch.guard with small commands in mpirun's place; a killed launcher is tested in tests/launch."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tfdist.launch import guard


def _start(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-I", "-S", guard.__file__, *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(("script", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)])
def test_status_is_passed_on(script: str, status: int) -> None:
    with _start("sh", "-c", script) as guarded:
        assert guarded.wait(timeout=30) == status


def test_sigterm_is_passed_on() -> None:
    script = "trap 'echo told; exit 5' TERM; echo up; while :; do sleep 0.01; done"
    with _start("sh", "-c", script) as guarded:
        assert guarded.stdout is not None
        assert guarded.stdout.readline() == "up\n"
        guarded.send_signal(signal.SIGTERM)
        assert guarded.stdout.readline() == "told\n"
        assert guarded.wait(timeout=30) == 5
