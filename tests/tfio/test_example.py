"""The example trains, by one process and by two."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("all_packages")

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "hdf5.py"


@pytest.mark.parametrize("size", [1, 2])
def test_it_learns(size, tmp_path):
    command = [sys.executable, str(SCRIPT), "--epochs", "8"]
    if size > 1:
        command = [str(Path(sys.executable).parent / "tfdistrun"), "-np", str(size), *command]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    accuracy, processes = re.search(r"accuracy ([\d.]+) with (\d) processes", done.stdout).groups()
    assert float(accuracy) > 0.9 and int(processes) == size
    assert not list(tmp_path.iterdir())
