"""The example stays true: it trains on one process and on several, and what it says at its end is so."""

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import keras
import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from tfdist.command.chaos.victim import ranks_below

SLICE = pytest.mark.slice("examples")
pytestmark = pytest.mark.usefixtures("all_packages")

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "digits.py"
LINES_AT_MOST = 84
SECONDS = 300


def run(size, folder, *options):
    command = [sys.executable, str(SCRIPT), "--output", str(folder), *options]
    if size > 1:
        command = [str(Path(sys.executable).parent / "tfdistrun"), "-np", str(size), *command]
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout, done.stderr


def accuracy_of(path):
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).reshape(-1, 8, 8, 1).astype("float32")
    _, images, _, labels = train_test_split(images, labels, test_size=360, random_state=0, stratify=labels)
    probabilities = keras.models.load_model(path).predict(images, verbose=0)
    return float(np.mean(np.argmax(probabilities, axis=1) == labels))


@pytest.mark.parametrize("size", [pytest.param(1, marks=SLICE), 2, pytest.param(3, marks=SLICE)])
def test_learns_the_digits_and_saves_what_it_says(size, tmp_path):
    output, errors = run(size, tmp_path)
    told = re.findall(r"validation accuracy: ([\d.]+)\n.*images per second: (\d+).*\n.*saved model: (.+)\n", output)
    assert len(told) == 1, output
    accuracy, images_per_second, path = told[0]
    assert float(accuracy) >= 0.97
    assert int(images_per_second) > 0
    assert Path(path) == tmp_path / "digits.keras"
    assert accuracy_of(path) == pytest.approx(float(accuracy), abs=1e-4)
    assert "tfdist.shard" not in errors, "the ranks read different data"


@pytest.mark.slice("examples")
def test_only_rank_0_speaks(tmp_path):
    output, _ = run(2, tmp_path, "--epochs", "1")
    assert not [line for line in output.splitlines() if line.startswith("[1]")]


@pytest.mark.slice("examples")
def test_options_are_honoured(tmp_path):
    output, _ = run(1, tmp_path, "--epochs", "2", "--batch-size", "100")
    assert "Epoch 2/2" in output
    assert "15/15" in output
    assert "Epoch 3" not in output


@pytest.mark.slice("examples")
def test_goes_on_without_a_process_that_is_lost(tmp_path):
    words = ("-np", "2", "--elastic", sys.executable, str(SCRIPT), "--elastic", "--output", str(tmp_path))
    command = [str(Path(sys.executable).parent / "tfdistrun"), *words]
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    said = ""
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as job:
        deadline = threading.Timer(SECONDS, job.kill)
        deadline.start()
        for line in job.stdout:
            if "Epoch 3/" in line and "Epoch 3/" not in said:  # it comes again
                os.kill(ranks_below(job.pid)[1], signal.SIGKILL)
            said += line
        deadline.cancel()
    assert job.returncode == 0, said
    assert re.search(r"rank 1 \(\S+\) was killed by signal 9 \(SIGKILL\); 1 rank continues", said)
    assert float(re.findall(r"validation accuracy: ([\d.]+)", said)[0]) >= 0.97
    assert "images per second" not in said


def test_is_short():
    assert len(SCRIPT.read_text().splitlines()) <= LINES_AT_MOST
