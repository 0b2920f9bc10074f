"""The names of tfdist.torch and their signatures stay as they are."""

import difflib
import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).resolve().parents[1] / "unit" / "outside.py"
RECORD = Path(__file__).with_name("outside.txt")
MODULES = ("tfdist.torch", "tfdist.torch.elastic")


def test_no_name_changes_unnoticed():
    """A change that is meant: `python tests/unit/outside.py MODULES > tests/torch/outside.txt`, and the changelog."""
    done = subprocess.run(
        [sys.executable, TOOL, *MODULES], cwd="/", capture_output=True, text=True, timeout=60, check=True
    )
    before, now = RECORD.read_text().splitlines(), done.stdout.splitlines()
    assert not list(difflib.unified_diff(before, now, "before", "now", lineterm="", n=0))
