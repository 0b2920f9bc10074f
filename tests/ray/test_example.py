"""The example runs as it is, on one machine, at one rank and at two."""

import re

import functions_of_ranks
import pytest


@pytest.mark.usefixtures("all_packages")
@pytest.mark.parametrize("ranks", [1, 2])
def test_example(ranks, tmp_path):
    said, accuracy = functions_of_ranks.check_example("ray_digits.py", ranks, tmp_path)
    epochs = re.findall(r"^epoch (\d): validation accuracy (\d\.\d+)$", said, re.MULTILINE)
    assert [int(number) for number, _ in epochs] == list(range(8))
    assert max(value for _, value in epochs) == accuracy
