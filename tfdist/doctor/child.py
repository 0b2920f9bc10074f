"""The programs that the doctor asks: the probe, and nvidia-smi. Each has a deadline. It judges nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from typing import Any

_PROBE_SECONDS = 300.0  # on a busy host TensorFlow alone takes a minute, and kernels may have to be compiled
_NVIDIA_SMI_SECONDS = 60.0
_TAIL_LINES = 15
# Neither the checkout nor any other folder where the user stands is to be found.
_PROGRAM = (
    "import sys; sys.path = [entry for entry in sys.path if entry]; "
    "from tfdist.doctor.probe import main; sys.exit(main())"
)
_PROBE = (sys.executable, "-X", "faulthandler", "-c", _PROGRAM)


def probe(command: tuple[str, ...] = _PROBE, seconds: float = _PROBE_SECONDS) -> Any:
    """What `tfdist.doctor.probe` reports, or how it ended, as text."""
    try:
        done = subprocess.run(
            command,
            env={"TF_CPP_MIN_LOG_LEVEL": "3"} | os.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"loading TensorFlow and tfdist took more than {seconds:g} seconds"
    for line in done.stdout.splitlines():
        if done.returncode == 0 and line.startswith("{"):
            return json.loads(line)
    how = f"exit status {done.returncode}" if done.returncode >= 0 else signal.Signals(-done.returncode).name
    # faulthandler ends with a line of a hundred names.
    lines = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("Extension modules:")]
    tail = "\n".join(lines[-_TAIL_LINES:])
    return f"the process that loads TensorFlow and tfdist ended with {how}" + (f":\n{tail}" if tail else "")


def nvidia_smi(*words: str) -> str | None:
    """What nvidia-smi prints; None where there is none, or it fails."""
    path = shutil.which("nvidia-smi")
    if path is None:
        return None
    try:
        command = [path, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_NVIDIA_SMI_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
