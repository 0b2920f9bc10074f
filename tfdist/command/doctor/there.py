"""The program that the doctor runs on each of several hosts: prints facts as JSON, then its clock some times.

It loads nothing that it reports on: the doctor starts it where that may be broken.
"""

from __future__ import annotations

import json
import os
import sys
import time

from tfdist import __version__
from tfdist.native import requirement

CLOCKS = 5
_STEP_S = 0.1


def main() -> int:
    """Runs on each host; returns 0."""
    facts = {
        "tfdist": __version__,
        "Python": ".".join(map(str, sys.version_info[:3])),
        "TensorFlow": _version(requirement.TENSORFLOWS),
        "Keras": _version(requirement.KERAS),
        "MPI": _version(requirement.MPIS),
        "path of Python": sys.executable,
        "working folder": os.getcwd(),
    }
    print(json.dumps({"facts": facts}), flush=True)
    for _ in range(CLOCKS):
        print(json.dumps({"clock_s": time.time()}), flush=True)
        time.sleep(_STEP_S)
    return 0


def _version(packages: tuple[str, ...]) -> str:
    return ", ".join(map(" ".join, requirement.installed(packages).items())) or "none"
