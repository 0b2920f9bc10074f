"""docs/ray.md: its script runs as it stands, and its parts in the places that it names."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("all_packages")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "ray.md"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
SCRIPT, ELASTIC, SERVES = BLOCK.findall(PAGE.read_text())
# The page of Spark, which this one refers to, has the function that reads.
*_, READS = BLOCK.findall(PAGE.with_name("spark.md").read_text())
BEGIN, END = SCRIPT.partition("\n\ndef train")[0], "ray.shutdown()\n"


@pytest.fixture(autouse=True)
def _workers_of_ray_end(processes, wait_until):
    """Those that idle notice a moment later that their node has ended."""
    yield
    wait_until(lambda: not processes("ray::IDLE"), seconds=30, what="the end of Ray's workers")


def run(folder, text):
    """What a script prints; the page's folder that all nodes reach is `folder`."""
    (folder / "train.py").write_text(text.replace("/shared", str(folder)))
    environment = os.environ | {"RAY_ADDRESS": "local"}  # nodes of its own, whatever else runs on this machine
    command = [sys.executable, "train.py"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_function_on_two_ranks(tmp_path):
    first, second = map(float, re.search(r"^\[(\S+), (\S+)\]$", run(tmp_path, SCRIPT), re.MULTILINE).groups())
    assert first == second < 1


def test_elastic(tmp_path):
    """The executor stands in the text; the function has the first one's model."""
    (made,) = re.findall(r"`RayExecutor\((min_workers=.*?)\)`", PAGE.read_text())
    above, _, rest = SCRIPT.partition("    rows, targets")
    fit = ELASTIC.partition("as above\n")[2] + "    return tfdist.size()\n"
    end = rest[rest.index("\n\nexecutor") :].replace("num_workers=2", made.replace("8", "2"))
    assert "[2, 2]" in run(tmp_path, above + fit + end)


def test_data_service(tmp_path):
    read = "import tensorflow as tf\nimport tfdist\ntfdist.init()\ndataset = tf.data.Dataset.range(10)\n"
    read += READS.replace("...", "print(sorted(map(int, dataset)))")
    (tmp_path / "read.py").write_text(read.replace("/shared", str(tmp_path)))
    train = "import subprocess, sys\nsubprocess.run([sys.executable, 'read.py'], check=True, timeout=200)"
    said = run(tmp_path, f"{BEGIN}\n{SERVES.replace('...', train)}{END}")
    assert str(list(range(10))) in said
