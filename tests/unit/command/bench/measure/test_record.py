"""CSV and JSON files, read back."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tfdist.command.bench import option
from tfdist.command.bench.measure import record

ROWS = [{"bytes": 4096, "dtype": "float32", "us": 1.25}, {"bytes": 8192, "dtype": "a, b", "us": None}]


def test_csv(tmp_path: Path) -> None:
    record.write_csv(tmp_path / "rows.csv", ROWS)
    with (tmp_path / "rows.csv").open(newline="") as file:
        read = list(csv.DictReader(file))
    assert read == [
        {"bytes": "4096", "dtype": "float32", "us": "1.25"},
        {"bytes": "8192", "dtype": "a, b", "us": ""},
    ]


def test_csv_refuses_rows_that_differ_in_their_columns(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="extra"):
        record.write_csv(tmp_path / "rows.csv", [{"a": 1}, {"a": 1, "extra": 2}])


def test_json_holds_rows_and_options(tmp_path: Path) -> None:
    options = option.parse(["train", "--csv", str(tmp_path / "x.csv")])
    record.write_json(tmp_path / "all.json", {"rows": ROWS, "options": options})
    read = json.loads((tmp_path / "all.json").read_text())
    assert read["rows"] == ROWS
    assert read["options"]["model"] == "ResNet50"
    assert read["options"]["csv"] == str(tmp_path / "x.csv")
    assert read["options"]["json"] is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object()])
def test_json_refuses_what_it_cannot_carry(tmp_path: Path, value: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        record.write_json(tmp_path / "all.json", {"value": value})
