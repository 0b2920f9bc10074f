"""The tests of ranks/, on 1, 2 and 3 ranks."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((Path(__file__).parent / "ranks").glob("*_on_ranks.py"))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_on_ranks(launch, size):
    options = ("-q", "-x", "--rootdir", ROOT, "-c", ROOT / "pyproject.toml", "-p", "no:cacheprovider")
    done = launch(size, "-m", "pytest", *options, *FILES)
    assert done.returncode == 0, done.stdout[-8000:]
    passed = re.findall(r"(\d+) passed", done.stdout)
    assert len(passed) == size and len(set(passed)) == 1, done.stdout[-2000:]
