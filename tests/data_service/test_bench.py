"""The benchmark of the layer measures both services in one run; its figures are not judged here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slice("data-service")

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "data_service.py"


def test_benchmark_tells_both_throughputs(tmp_path):
    figures = tmp_path / "figures.json"
    sizes = ["--tiny", "200", "--large", "20", "--local", "1000", "--rounds", "1"]
    command = [sys.executable, str(SCRIPT), *sizes, "--json", str(figures)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    results = json.loads(figures.read_text())
    assert [(one["case"], one["elements"]) for one in results] == [
        ("8 B elements", 200),
        ("8 B, TensorFlow twice", 200),
        ("100 KB elements", 20),
        ("100 KB, TensorFlow twice", 20),
        ("served op alone", 1000),
        ("watched op alone", 1000),
        ("watched op with ids", 1000),
    ]
    for one in results:
        assert one["ratio"] == pytest.approx(one["ours_per_second"] / one["raw_per_second"])
        difference = 1e6 / one["ours_per_second"] - 1e6 / one["raw_per_second"]
        assert one["overhead_us"] == pytest.approx(difference, abs=1e-6)
        assert one["case"] in done.stdout
