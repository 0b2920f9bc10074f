"""Writes results for other programs: the rows as CSV, everything as JSON."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """A header, then one line per row; all rows have the keys of the first. Unknown values stay empty."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """The document, indented; a number that JSON does not support (NaN, infinity) is an error."""
    path.write_text(json.dumps(document, indent=2, default=_plain, allow_nan=False) + "\n", encoding="utf-8")


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{value!r} cannot be written as JSON")
