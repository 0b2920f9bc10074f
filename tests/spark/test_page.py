"""docs/spark.md: its scripts run as they stand, and its parts in the places that it names."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("all_packages")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark.md"
SCRIPT, ELASTIC, ESTIMATOR, SERVES, READS = re.findall(
    r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL
)
SESSION = SCRIPT.partition("\n\ndef train")[0]
STOP = "spark.stop()\n"
SECONDS = 300


def start(folder, name, text):
    """A script; the page's folder that all executors reach is `folder`."""
    (folder / name).write_text(text.replace("/shared", str(folder)))
    return subprocess.Popen(
        [sys.executable, name], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def said_by(script):
    with script:
        try:
            said = script.communicate(timeout=SECONDS)[0]
        finally:
            script.kill()
    assert script.returncode == 0, said
    return said


def run(folder, name, text):
    return said_by(start(folder, name, text))


def losses(said):
    """Which the script prints last, of both ranks."""
    first, second = map(float, re.search(r"^\[(\S+), (\S+)\]$", said, re.MULTILINE).groups())
    return first, second


def test_the_function_on_two_ranks(tmp_path):
    first, second = losses(run(tmp_path, "train.py", SCRIPT))
    assert first == second < 1


def test_elastic(tmp_path):
    """The call stands in the text; the function has the first one's model."""
    (call,) = re.findall(r"`tfdist\.spark\.run_elastic\(train, (.*?)\)`", PAGE.read_text())
    above = SCRIPT.partition("    rows, targets")[0]
    fit = ELASTIC.partition("as above\n")[2]
    end = f"\n\nprint(tfdist.spark.run_elastic(train, args=(3,), {call.replace('4', '2').replace('8', '2')}))\n{STOP}"
    said = run(tmp_path, "train.py", above + fit + "    return tfdist.size()\n" + end)
    assert "[2, 2]" in said


def test_estimator(tmp_path):
    said = run(tmp_path, "estimate.py", ESTIMATOR + STOP)
    assert "'val_loss'" in said and "price__output" in said
    assert (tmp_path / "prices" / "fitted").exists()


def test_data_service(tmp_path, wait_until):
    """Started in an application of its own; it ends when the training script says so."""
    serves = start(tmp_path, "serve.py", f"{SESSION}\n{SERVES}{STOP}")
    file = tmp_path / "compute.json"
    wait_until(lambda: file.exists() or serves.poll() is not None, seconds=SECONDS, what="the file of the service")
    assert file.exists(), said_by(serves)
    begin = "import tensorflow as tf\nimport tfdist\ntfdist.init()\ndataset = tf.data.Dataset.range(10)\n"
    said = run(tmp_path, "train.py", begin + READS.replace("...", "print(sorted(map(int, dataset)))"))
    assert str(list(range(10))) in said
    said_by(serves)
