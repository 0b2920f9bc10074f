"""Runs the doctor's child processes, each with a deadline: the probe, ranks on this and other hosts, and nvidia-smi."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from tfdist.command.doctor.hosts import Told

_PROBE_SECONDS = 300.0  # on a busy host loading TensorFlow takes a minute, and kernels may have to be compiled
_NVIDIA_SMI_SECONDS = 60.0
_TAIL_LINES = 15
# Nothing is imported from the working directory, which may be the checkout.
_PROGRAM = "import sys; sys.path = [entry for entry in sys.path if entry]; from {} import main; sys.exit(main())"


def _program(module: str) -> tuple[str, ...]:
    return (sys.executable, "-X", "faulthandler", "-c", _PROGRAM.format(module))


_PROBE = _program("tfdist.command.doctor.probe")
_LAUNCHER = (*_program("tfdist.launch.command"), "--no-config")
# Between hosts more is summed: 16 MiB, of which all sums are exact.
_MANY_ELEMENTS = "4194304"
# The launcher ends its ranks, and then itself.
_END_S = 30.0
# On this host, even inside a cluster job.
_PAIR = (*_LAUNCHER, "-np", "2", "-H", "localhost:2", *_program("tfdist.command.doctor.pair"))


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


def told(
    hosts: Sequence[str],
    options: Sequence[str] = (),
    launcher: Sequence[str] = _LAUNCHER,
    seconds: float = _PROBE_SECONDS,
) -> dict[str, Told] | str:
    """What each host tells; or how the job failed, as text.

    Args:
        hosts: Their names.
        options: More options of tfdistrun.
        launcher: The program that starts ranks.
        seconds: The deadline.
    """
    words = ("-np", str(len(hosts)), "-H", ",".join(f"{host}:1" for host in hosts), *options)
    command = [*launcher, *words, *_program("tfdist.command.doctor.there")]
    arrived: list[tuple[float, str]] = []
    said: list[str] = []
    job = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
    )
    readers = [
        threading.Thread(target=lambda: arrived.extend((time.time(), line) for line in job.stdout or ())),
        threading.Thread(target=lambda: said.extend(job.stderr or ())),
    ]
    for reader in readers:
        reader.start()
    try:
        status = job.wait(seconds)
    except subprocess.TimeoutExpired:
        return f"a job on {', '.join(hosts)} took longer than {seconds:g} seconds"
    finally:
        _end_job(job, readers)
    facts, ahead = _sorted(arrived)
    if status != 0 or len(facts) < len(hosts):
        done = subprocess.CompletedProcess(command, status, "", "".join(said))
        return _end(f"a job on {', '.join(hosts)}", done)
    return {host: Told(facts[rank], ahead[rank]) for rank, host in enumerate(hosts)}


def _sorted(arrived: Sequence[tuple[float, str]]) -> tuple[dict[int, dict[str, str]], dict[int, float]]:
    """The facts by rank, and how far its clock is ahead: a line is only ever late, so the largest is the best."""
    facts: dict[int, dict[str, str]] = {}
    ahead: dict[int, float] = {}
    for at_s, line in arrived:
        rank, _, text = line.removeprefix("[").partition("] ")
        if not rank.isdecimal() or not text.startswith("{"):
            continue
        message = json.loads(text)
        if "facts" in message:
            facts[int(rank)] = message["facts"]
        else:
            ahead[int(rank)] = max(ahead.get(int(rank), float("-inf")), message["clock_s"] - at_s)
    return facts, ahead


def _end_job(job: subprocess.Popen[str], readers: Sequence[threading.Thread]) -> None:
    if job.poll() is None:
        job.terminate()
        try:
            job.wait(_END_S)
        except subprocess.TimeoutExpired:
            job.kill()
            job.wait()
    for reader in readers:
        reader.join(_END_S)


def between(pair: Sequence[str], options: Sequence[str] = (), launcher: Sequence[str] = _LAUNCHER) -> Any:
    """The report of `tfdist.command.doctor.pair` on two hosts; or how it failed, as text."""
    program = (*_program("tfdist.command.doctor.pair"), _MANY_ELEMENTS)
    command = (*launcher, "-np", "2", "-H", ",".join(f"{host}:1" for host in pair), *options, *program)
    return two_ranks(2, command)


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
