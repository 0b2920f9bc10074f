"""Runs the doctor's child processes, each with a deadline: the probe, two ranks, and nvidia-smi."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from typing import Any

_PROBE_SECONDS = 300.0  # on a busy host loading TensorFlow takes a minute, and kernels may have to be compiled
_NVIDIA_SMI_SECONDS = 60.0
_TAIL_LINES = 15
# Nothing is imported from the working directory, which may be the checkout.
_PROGRAM = "import sys; sys.path = [entry for entry in sys.path if entry]; from {} import main; sys.exit(main())"


def _program(module: str) -> tuple[str, ...]:
    return (sys.executable, "-X", "faulthandler", "-c", _PROGRAM.format(module))


_PROBE = _program("tfdist.command.doctor.probe")
# On this host, even inside a cluster job.
_PAIR = (*_program("tfdist.launch.command"), "-np", "2", "-H", "localhost:2", *_program("tfdist.command.doctor.pair"))


def probe(command: tuple[str, ...] = _PROBE, seconds: float = _PROBE_SECONDS) -> Any:
    """The report of `tfdist.command.doctor.probe`, or how it failed, as text."""
    try:
        done = _run(command, seconds, {})
    except subprocess.TimeoutExpired:
        return f"loading TensorFlow and tfdist took longer than {seconds:g} seconds"
    return _report(done) or _end("the process that loads TensorFlow and tfdist", done)


def two_ranks(gpus: int, command: tuple[str, ...] = _PAIR, seconds: float = _PROBE_SECONDS) -> Any:
    """The report of `tfdist.command.doctor.pair`, with the job's stderr as "said"; or how it failed, as text.

    Args:
        gpus: How many GPUs this host has; with fewer than one per rank, the ranks use none.
        command: The job.
        seconds: The deadline.
    """
    try:
        done = _run(command, seconds, {} if gpus > 1 else {"CUDA_VISIBLE_DEVICES": ""})
    except subprocess.TimeoutExpired:
        return f"a job with two ranks took longer than {seconds:g} seconds"
    report = _report(done)
    return report | {"said": done.stderr} if report else _end("a job with two ranks", done)


def _run(command: tuple[str, ...], seconds: float, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env={"TF_CPP_MIN_LOG_LEVEL": "3"} | os.environ | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=seconds,
        check=False,
    )


def _report(done: subprocess.CompletedProcess[str]) -> dict[str, Any] | None:
    """The JSON line, without the rank that the launcher puts before it."""
    lines = (line.removeprefix("[0] ") for line in done.stdout.splitlines() if done.returncode == 0)
    return next((json.loads(line) for line in lines if line.startswith("{")), None)


def _end(who: str, done: subprocess.CompletedProcess[str]) -> str:
    how = f"exit status {done.returncode}" if done.returncode >= 0 else signal.Signals(-done.returncode).name
    # faulthandler ends with a line of a hundred names.
    lines = [line for line in done.stderr.splitlines() if line.strip() and "Extension modules:" not in line]
    tail = "\n".join(lines[-_TAIL_LINES:])
    return f"{who} ended with {how}" + (f":\n{tail}" if tail else "")


def nvidia_smi(*words: str) -> str | None:
    """The output of nvidia-smi; None if it is not installed or fails."""
    path = shutil.which("nvidia-smi")
    if path is None:
        return None
    try:
        command = [path, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_NVIDIA_SMI_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
