"""Tests of tfdist.command.environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from tfdist import __version__, config
from tfdist.command import main as tfdist
from tfdist.command.environment import report
from tfdist.native import requirement


def _rows(**environment: str) -> dict[str, str]:
    return dict(report.rows({"PATH": os.environ["PATH"], **environment}))


def test_packages_are_those_that_are_installed() -> None:
    rows = _rows()
    assert rows["tfdist"] == __version__
    assert rows["Keras"] == f"{metadata.version('keras')} (keras)"
    assert rows["TensorFlow"].partition(" ")[0] in map(
        metadata.version, filter(requirement.is_installed, requirement.TENSORFLOWS)
    )
    assert rows["Python"].endswith(sys.executable)


def test_nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirement, "is_installed", lambda package: False)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    rows = _rows(PATH="/nowhere")
    assert {name for name, value in rows.items() if value == report.NONE} == {
        "TensorFlow",
        "Keras",
        "NumPy",
        "mpi4py",
        "CUDA",
        "NCCL",
        "MPI",
    }


def test_mpirun_that_does_not_run(tmp_path: Path) -> None:
    program = tmp_path / "bin/mpirun"
    program.parent.mkdir()
    for text, expected in (("#!/bin/sh\nexit 5\n", "exit status 5, "), ("#!/no/such\n", f"{program} does not run: ")):
        program.write_text(text)
        program.chmod(0o755)
        assert _rows(TFDIST_MPI_HOME=str(tmp_path))["MPI"].startswith(expected)


def test_settings_in_effect() -> None:
    rows = _rows(
        TFDIST_COMPRESSION="BF16", HOROVOD_TIMELINE="/a.json", HOROVOD_LOG_LEVEL="debug", TFDIST_LOG_LEVEL="error"
    )
    known = {row.variable for row in config.SETTINGS} | {row.horovod_variable for row in config.SETTINGS}
    assert {name: value for name, value in rows.items() if name in known} == {
        "TFDIST_COMPRESSION": "bf16",
        "HOROVOD_TIMELINE": "/a.json",
        "TFDIST_LOG_LEVEL": "error",
    }
    assert _rows(TFDIST_AUTOTUNE="7")["TFDIST_AUTOTUNE"] == "7 (cannot be used: must be one of 0, 1, lossy)"


def test_no_secret_is_printed() -> None:
    given = {"TFDIST_KEY": "hush1", "AWS_SECRET_ACCESS_KEY": "hush2", "HOROVOD_SECRET_KEY": "hush3"}
    rows = _rows(**given, TFDIST_TIMELINE="https://me:hush4@store/bucket?signature=hush5")
    assert "hush" not in str(rows)
    assert rows["TFDIST_TIMELINE"] == "https://***store/bucket?***"


def test_command_imports_nothing_that_it_reports_on(tmp_path: Path) -> None:
    """TensorFlow, Keras and NumPy are replaced by packages that cannot be imported."""
    for name in ("tensorflow", "keras", "numpy", "mpi4py"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('broken')\n")
    variables = os.environ | {"PYTHONPATH": str(tmp_path)}
    for module in ("tfdist", "tfdist.command"):
        command = [sys.executable, "-m", module, "env", "--json"]
        done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout)["Keras"] == f"{metadata.version('keras')} (keras)"


def test_text_has_one_line_for_each_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert tfdist.main(["env"]) == 0
    names = [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()]
    assert names[:2] == ["tfdist", "Python"]
    assert names == [name for name, _ in report.rows(os.environ)]
