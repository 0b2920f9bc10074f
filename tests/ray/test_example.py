"""The example runs as it is, on one machine, at one rank and at two."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "ray_digits.py"


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
    epochs = re.findall(r"^epoch (\d): validation accuracy (\d\.\d+)$", done.stdout, re.MULTILINE)
    assert [int(number) for number, _ in epochs] == list(range(8))
    assert max(accuracy for _, accuracy in epochs) == found[1]
