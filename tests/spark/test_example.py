"""The examples run as they are, in local mode, at one rank and at two."""

import functions_of_ranks
import pytest

pytestmark = pytest.mark.usefixtures("all_packages")


@pytest.mark.parametrize("ranks", [1, 2])
def test_example(ranks, tmp_path):
    said, _ = functions_of_ranks.check_example("spark_digits.py", ranks, tmp_path)
    steps = {1: 45, 2: 23}[ranks]  # of 1,437 images, in batches of 32 for each rank
    assert f"[0] {steps}/{steps} " in said


@pytest.mark.parametrize("ranks", [1, 2])
def test_example_of_an_estimator(ranks, tmp_path):
    functions_of_ranks.check_example("spark_estimator.py", ranks, tmp_path, r"test accuracy: (\d\.\d+)")
    assert not list(tmp_path.iterdir())
