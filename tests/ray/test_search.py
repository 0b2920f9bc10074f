"""The recipes of docs/hyperparameter-search.md run as they are; and a trial that dies counts as failed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "hyperparameter-search.md"
FUNCTION, TUNE, KERAS_TUNER = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def run(folder, text):
    """What a script prints."""
    script = folder / "search.py"
    script.write_text(text)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=folder, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


KILLED = """\
    if rate > 0.01 and tfdist.rank() == 1:
        import os

        os.kill(os.getpid(), 9)
"""
PLACE = "    keras.utils.set_random_seed(1)\n"
assert PLACE in FUNCTION
DIES = FUNCTION.replace(PLACE, KILLED + PLACE)


@pytest.mark.usefixtures("all_packages")
@pytest.mark.parametrize("text", [FUNCTION, DIES], ids=["as it is", "one dies"])
def test_ray_tune(tmp_path, text):
    said = run(tmp_path, text + TUNE)
    failed = text != FUNCTION
    assert f"best: {{'rate': {0.001 if failed else 0.05}}} failed: {int(failed)}" in said


@pytest.mark.usefixtures("all_packages")
def test_keras_tuner(tmp_path):
    said = run(tmp_path, FUNCTION + KERAS_TUNER)
    assert 0.001 <= float(re.search(r"best: {'rate': ([\d.e-]+)}", said)[1]) <= 0.1


@pytest.mark.usefixtures("all_packages")
def test_keras_tuner_goes_on(tmp_path):
    """The first trial dies, the second one does not."""
    text = KERAS_TUNER.replace(
        'trial.hyperparameters.Float("rate", 0.001, 0.1, sampling="log")',
        'trial.hyperparameters.Choice("rate", [0.05, 0.002])',
    ).replace("RandomSearch", "GridSearch")
    said = run(tmp_path, DIES + text)
    assert "best: {'rate': 0.002}" in said
