"""What an image takes on disk, in MiB: the whole, and parts of its Python's packages. No test of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping

TENSORFLOW = {"TensorFlow": "tensorflow*"}
NVIDIA = {"NVIDIA's packages": "nvidia*"}
# Only the example needs them.
EXAMPLE = {"scikit-learn": "sklearn* scikit_learn* scipy* joblib* narwhals* threadpoolctl*"}
# What an image may take besides all of these.
LIMIT_MIB = 600


def sizes(
    docker: Callable[..., subprocess.CompletedProcess[str]], image: str, parts: Mapping[str, str]
) -> tuple[int, dict[str, int]]:
    """Of everything, and of the packages that the patterns name; each must be there."""
    lines = ["set -e -o pipefail", "du -sm --exclude=/proc /", "cd /opt/tfdist/lib/python3*/site-packages"]
    lines += [f"du -scm {patterns} | tail -1" for patterns in parts.values()]
    told = docker("run", "--rm", "--user", "0", image, "bash", "-c", "\n".join(lines)).stdout.splitlines()
    whole, *rest = (int(line.split()[0]) for line in told)
    return whole, dict(zip(parts, rest, strict=True))
