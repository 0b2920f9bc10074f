"""What scripts rely on stays as it is: names, signatures, options, variables, statuses (`outside`)."""

from __future__ import annotations

import difflib
import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).with_name("outside.py")
RECORD = Path(__file__).with_name("outside.txt")


def test_nothing_of_the_outside_changes_unnoticed() -> None:
    """A change that is meant: `python tests/unit/outside.py > tests/unit/outside.txt`, and a line of the changelog."""
    done = subprocess.run([sys.executable, TOOL], cwd="/", capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    before, now = RECORD.read_text().splitlines(), done.stdout.splitlines()
    assert not list(difflib.unified_diff(before, now, "before", "now", lineterm="", n=0))
