"""benchmarks/two_hosts.py without a network: what the wire allows, and the section of the document."""

from __future__ import annotations

import argparse
from typing import Any

import pytest


def test_ratios_are_of_the_bytes_that_travel(script: Any) -> None:
    two_hosts = script("two_hosts")
    assert two_hosts.wire_seconds(125_000_000, 1000) == pytest.approx(1.0)
    rows = [
        {"compression": "none", "median_us": 1_006_632.96, "min_us": 900_000.0},
        {"compression": "fp16", "median_us": 503_316.48, "min_us": 450_000.0},
    ]
    slower = [{**row, "median_us": 2 * row["median_us"], "min_us": row["min_us"] + 1e6} for row in rows]
    found = {"MPI": [slower, slower], "sockets": [rows, slower, rows]}
    given = argparse.Namespace(size="100MB", tensors=4, megabits=1000, seconds=2.0, starts=3)
    text = two_hosts.section(found, ["mpirun ...", "tfdistrun ..."], given)
    assert "two_hosts.py --size 100MB --tensors 4 --megabits 1000 --seconds 2 --starts 3\n  mpirun ...\n" in text
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if "|" in line]
    assert lines[2:] == [
        ["none", "MPI", "2013", "1900", "839", "2.40", "1.00", "1.00"],
        ["fp16", "MPI", "1007", "1450", "419", "2.40", "0.50", "1.00"],
        ["none", "sockets", "1007", "900", "839", "1.20", "1.00", "0.50"],
        ["fp16", "sockets", "503", "450", "419", "1.20", "0.50", "0.50"],
    ]
