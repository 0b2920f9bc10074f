"""Tests of guard with small commands in mpirun's place; a killed launcher is tested in tests/launch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest

from tfdist.launch.run import guard
from tfdist.launch.wire.ticket import JOB_VARIABLE


def _start(*words: str, variables: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, "-I", "-S", guard.__file__, *words]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, JOB_VARIABLE: uuid.uuid4().hex, **(variables or {})},
    )


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


def test_each_mpirun_has_a_folder_of_its_own(tmp_path: Path) -> None:
    script = 'folder=$(env | sed -n "s/^PRTE_MCA_.*=//p"); mkdir "$folder/left"; echo "$folder"; kill -9 $$'
    folders = set()
    for _ in range(2):
        with _start("sh", "-c", script, variables={"TMPDIR": str(tmp_path)}) as guarded:
            assert guarded.stdout is not None
            folders.add(Path(guarded.stdout.read().strip()))
            assert guarded.wait(timeout=30) == 137
        assert list(tmp_path.iterdir()) == []
    assert len(folders) == 2
    assert {folder.parent for folder in folders} == {tmp_path}
