"""The wheel in a root without a compiler, with each TensorFlow that it is for: it trains.

With the newest and the oldest the tests of parity pass.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from bare_root import PATH, Bare, accuracy, install

# A Python and a TensorFlow: the first and the last release of each minor, and each Python.
PAIRS = (
    *(("3.10", "2.16.1"), ("3.10", "2.17.0"), ("3.11", "2.18.0"), ("3.11", "2.18.1"), ("3.12", "2.19.0")),
    *(("3.12", "2.19.1"), ("3.13", "2.20.0"), ("3.11", "2.21.0"), ("3.13", "2.21.0")),
)
WITH_PARITY = (("3.10", "2.16.1"), ("3.13", "2.21.0"))
LEAST_ACCURACY = 0.97


@pytest.mark.parametrize(("python", "tensorflow"), PAIRS)
def test_trains(
    bare: Callable[[str], Bare],
    wheel: Path,
    python: str,
    tensorflow: str,
) -> None:
    here = bare(python)
    tests = ["pytest", "hypothesis"] * ((python, tensorflow) in WITH_PARITY)
    seconds = install(here, wheel, f"tensorflow-cpu=={tensorflow}", "scikit-learn", *tests)
    print(f"pip install for Python {python} and TensorFlow {tensorflow}: {seconds:.1f} s")
    start = ["/venv/bin/tfdistrun", "-np", "2"]
    done = here.run(*start, "/venv/bin/python", "/project/examples/digits.py", "--output", "/project/out")
    assert done.returncode == 0, done.stdout + done.stderr
    assert accuracy(done.stdout) >= LEAST_ACCURACY
    assert "is installed; tfdist knows" not in done.stderr
    if tests:
        words = [
            "/venv/bin/pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--slice=all",
            "-k",
            "np2",
            "/project/tests/ranks/test_parity.py",
        ]
        done = here.run(*words, PATH=f"/venv/bin:{PATH}", TFDIST_TEST_SAMPLE="1")
        assert done.returncode == 0, done.stdout + done.stderr
        assert " passed" in done.stdout
