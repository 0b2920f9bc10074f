"""The example runs as it is, in local mode, at one rank and at two."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "spark_digits.py"


@pytest.mark.usefixtures("all_packages")
@pytest.mark.parametrize("ranks", [1, 2])
def test_example(ranks, tmp_path):
    done = subprocess.run(
        [sys.executable, SCRIPT, "--ranks", str(ranks), "--epochs", "8"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found = re.search(r"^validation accuracy: (\d\.\d+), by a model of 9610 parameters$", done.stdout, re.MULTILINE)
    assert found is not None and float(found[1]) >= 0.9, done.stdout
    steps = {1: 45, 2: 23}[ranks]  # of 1,437 images, in batches of 32 for each rank
    assert f"[0] {steps}/{steps} " in done.stdout
