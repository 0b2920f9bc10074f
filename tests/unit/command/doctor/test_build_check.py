"""Tests of tfdist.command.doctor.build_check."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tfdist.command.doctor import build_check, child

# As tfdist.command.doctor.probe prints it on a machine without a GPU, and on one with.
FOUND: dict[str, Any] = {
    "tfdist": "0.1.0",
    "python": "3.11.7",
    "tensorflow": {"version": "2.21.0", "cuda": False, "gpus": 0},
    "keras": {"version": "3.15.1"},
    "mpi": {"version": "Open MPI v5.0.11"},
    "library": {"built": {"for": "TensorFlow 2.21, Open MPI 5.0.11", "xla": "cpu,cuda"}},
    "gpus": {
        "driver": {"error": "the NVIDIA driver was not found: libcuda.so.1.\nTried: x"},
        "nccl": {"error": "NCCL was not found. Install nvidia-nccl-cu12. Tried:\n  libnccl.so.2"},
        "gpus": [],
    },
}
GPUS = {"driver": {"version": 12080}, "nccl": {"version": 22800, "text": "NCCL 2.28.0 (/site/libnccl.so.2)"}}
TEXT = """\
tfdist v0.1.0:

Available Frameworks:
    [X] TensorFlow  (2.21.0)
    [X] Keras  (3.15.1)

Available Controllers:
    [X] MPI  (Open MPI v5.0.11)
    [X] Gloo  (tfdist's own sockets: --no-mpi)

Available Tensor Operations:
    [X] MPI  (between hosts)
    [X] Sockets  (between hosts)
    [X] Shared memory  (within a host)
    [ ] NCCL  (NCCL was not found. Install nvidia-nccl-cu12)
    [ ] CUDA  (the NVIDIA driver was not found: libcuda.so.1)
    [X] XLA  (cpu, cuda)

Available Compression:
    [X] fp16
    [X] bf16

Available Elastic Jobs:
    [X] Sockets  (--elastic)"""


def test_machine_without_a_gpu() -> None:
    assert build_check.render(FOUND) == TEXT


def test_machine_without_mpi() -> None:
    text = build_check.render(FOUND | {"mpi": {"missing": True}})
    assert text.count("    [ ] MPI  (not installed)\n") == 2
    assert "    [X] Sockets  (between hosts)\n" in text


def test_machine_with_a_gpu() -> None:
    text = build_check.render(FOUND | {"gpus": GPUS})
    assert "    [X] NCCL  (NCCL 2.28.0 (/site/libnccl.so.2))\n    [X] CUDA  (driver up to CUDA 12.8)\n" in text


def test_what_is_missing() -> None:
    broken = {"error": "the library was built for another TensorFlow"}
    found = FOUND | {"library": broken, "gpus": broken, "keras": {"error": "keras is not installed"}}
    text = build_check.render(found)
    assert text.count("[ ]") == 8
    assert "    [ ] Keras  (keras is not installed)\n" in text
    assert "    [ ] Shared memory  (the library was built for another TensorFlow)\n" in text
    assert text.endswith("    [ ] Sockets  (the library was built for another TensorFlow)")


def test_status(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(child, "probe", lambda: FOUND)
    assert build_check.main() == 0
    assert capsys.readouterr().out.startswith("tfdist v0.1.0:\n\nAvailable Frameworks:\n")
    monkeypatch.setattr(child, "probe", lambda: FOUND | {"library": {"error": "none"}})
    assert build_check.main() == 1
    monkeypatch.setattr(child, "probe", lambda: "it ended with SIGSEGV")
    capsys.readouterr()
    assert build_check.main() == 1
    assert capsys.readouterr().out == "tfdist: it ended with SIGSEGV\n"


def test_installation_at_hand_and_no_tensorflow_in_the_launcher() -> None:
    """Other words, which a job would refuse, do not matter."""
    script = (
        "import sys; from tfdist.launch.command import main; status = main(['-cb', '-np', '2'])\n"
        "sys.exit(status or 'tensorflow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "    [X] TensorFlow  (2." in done.stdout
    assert "    [X] MPI  (between hosts)" in done.stdout
