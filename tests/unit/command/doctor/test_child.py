"""The programs that the doctor asks, and how they may end."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tfdist.command.doctor import child


def python(script: str) -> tuple[str, ...]:
    return (sys.executable, "-c", script)


def test_the_report_is_found_among_other_lines() -> None:
    assert child.probe(python("print('noise'); print('{\"a\": 1}')")) == {"a": 1}


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("import sys; print('{}'); sys.exit('no such thing')", "ended with exit status 1:\nno such thing"),
        ("import os; os.abort()", "ended with SIGABRT"),
        ("pass", "ended with exit status 0"),
    ],
)
def test_an_end_without_a_report(script: str, text: str) -> None:
    assert text in child.probe(python(script))


def test_a_crash_shows_where_it_was() -> None:
    script = "import faulthandler, numpy, os\nfaulthandler.enable()\nos.abort()"
    text = child.probe(python(script))
    assert "Fatal Python error: Aborted" in text and 'File "<string>", line 3' in text
    assert "Extension modules" not in text


def test_a_deadline() -> None:
    assert "took longer than 0.2 seconds" in child.probe(python("import signal; signal.pause()"), 0.2)


def test_the_real_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It loads TensorFlow and the engine, and files where the user stands do not hide modules."""
    (tmp_path / "tfdist.py").write_text("raise SystemExit('the wrong one')")
    monkeypatch.chdir(tmp_path)
    report = child.probe()
    assert isinstance(report, dict), report
    assert set(report) == {"tfdist", "python", "tensorflow", "keras", "mpi", "library", "gpus", "twins"}
    minor = ".".join(report["tensorflow"]["version"].split(".")[:2])
    assert report["library"]["built"]["for"].startswith("TensorFlow ") and minor in report["library"]["built"]["for"]
    assert set(report["gpus"]) == {"driver", "gpus", "nccl", "compiler", "kernels"}


@pytest.mark.parametrize(("body", "output"), [("echo $1 $2", "topo -m\n"), ("echo lost; exit 9", None)])
def test_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, output: str | None) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert child.nvidia_smi("topo", "-m") is None
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    assert child.nvidia_smi("topo", "-m") == output


PAIR = {"ranks": 2, "bytes": 8, "seconds": 0.5, "device": "CPU:0"}


def test_two_ranks_as_their_job_prints_them() -> None:
    script = f"import json, sys; print('[1] {{}}'); print('[0] ' + json.dumps({PAIR})); print('slow', file=sys.stderr)"
    assert child.two_ranks(0, python(script)) == PAIR | {"said": "slow\n"}


@pytest.mark.parametrize(("gpus", "hidden"), [(0, True), (1, True), (2, False)])
def test_two_ranks_take_gpus_only_where_each_gets_one(gpus: int, hidden: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    script = "import json, os; print(json.dumps({'seen': os.environ['CUDA_VISIBLE_DEVICES']}))"
    assert child.two_ranks(gpus, python(script))["seen"] == ("" if hidden else "0,1")


def test_a_job_that_fails_or_hangs() -> None:
    text = child.two_ranks(0, python("import sys; sys.exit('rank 1 got 3 wrong sums of 8')"))
    assert text == "a job with two ranks ended with exit status 1:\nrank 1 got 3 wrong sums of 8"
    assert "took longer than 0.2 seconds" in child.two_ranks(0, python("import signal; signal.pause()"), 0.2)


def test_the_real_two_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tfdist.py").write_text("raise SystemExit('the wrong one')")
    monkeypatch.chdir(tmp_path)
    report = child.two_ranks(0)
    assert isinstance(report, dict), report
    assert (report["ranks"], report["bytes"], report["device"]) == (2, 1 << 20, "CPU:0") and report["seconds"] > 0
