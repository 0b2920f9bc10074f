"""The examples of PyTorch keep what their heads promise, on 1 and 2 ranks."""

import re
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "pytorch"


def numbers(launch, size, script, pattern):
    done = launch(size, EXAMPLES / script)
    (found,) = re.findall(pattern, done.stdout) or [done.stdout]
    assert done.returncode == 0 and isinstance(found, tuple), done.stdout[-4000:]
    return found


@pytest.mark.parametrize("size", [1, 2])
def test_digits(launch, size):
    first, last, accuracy = numbers(
        launch, size, "digits.py", r"epoch 1: loss ([\d.]+)[\s\S]*epoch 6: loss ([\d.]+)[\s\S]*accuracy: ([\d.]+)"
    )
    assert float(last) < float(first) / 3 and float(accuracy) >= 0.9


@pytest.mark.parametrize(("size", "steps"), [(1, "40"), (2, "40, 60")])
def test_unequal(launch, size, steps):
    pattern = r"steps: \[(.+)\]; rank (\d) joined last; weights: \[([\d.-]+), ([\d.-]+)\], the same on all ranks: True"
    done, last, one, other = numbers(launch, size, "unequal.py", pattern)
    assert done == steps and int(last) == size - 1
    assert abs(float(one) - 2) < 0.05 and abs(float(other) + 1) < 0.05
