"""The examples run as they are, in local mode, at one rank and at two."""

import functions_of_ranks
import pytest
from s3 import s3, s3_server  # noqa: F401

pytestmark = pytest.mark.usefixtures("all_packages")


@pytest.mark.parametrize("ranks", [1, 2])
def test_example(ranks, tmp_path):
    said, _ = functions_of_ranks.check_example("spark_digits.py", ranks, tmp_path)
    steps = {1: 45, 2: 23}[ranks]  # of 1,437 images, in batches of 32 for each rank
    assert f"[0] {steps}/{steps} " in said


@pytest.mark.parametrize(("ranks", "kind"), [(1, "disk"), (2, "objects")])
def test_example_of_an_estimator(ranks, kind, tmp_path, s3, monkeypatch):  # noqa: F811
    place = s3.folder() if kind == "objects" else str(tmp_path)
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    words = ("--store", place)
    functions_of_ranks.check_example("spark_estimator.py", ranks, tmp_path, r"test accuracy: (\d\.\d+)", words)
    kept = s3.objects(place) if kind == "objects" else [str(path) for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(name.rpartition(".")[2] for name in kept) == ["csv", "keras"], "the checkpoint and the log"
