"""Sections of docs/performance.md, which the benchmarks write: the text between two markers, and nothing else of it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from tfdist.system.atomic_file import write_atomically

PERFORMANCE = Path(__file__).resolve().parent.parent / "docs" / "performance.md"


def replaced(document: str, section: str, text: str) -> str:
    """The document with `text` between the markers of a section.

    Raises:
        ValueError: If they are not there once each, in order.
    """
    begin, end = _markers(document, section)
    before, after = document.partition(begin)[0], document.partition(end)[2]
    return f"{before}{begin}\n{text}\n{end}{after}"


def text_of(document: str, section: str) -> str:
    """The text between the markers of a section.

    Raises:
        ValueError: As `replaced`.
    """
    begin, end = _markers(document, section)
    return document.partition(begin)[2].partition(end)[0]


def _markers(document: str, section: str) -> tuple[str, str]:
    begin, end = f"<!-- {section}: begin -->", f"<!-- {section}: end -->"
    if document.count(begin) != 1 or document.count(end) != 1 or document.index(begin) > document.index(end):
        raise ValueError(f"the document must have one line {begin} and after it one line {end}")
    return begin, end


def write(path: Path, section: str, text: str) -> None:
    """Replaces a section of the file at `path`."""
    document = replaced(path.read_text(), section, text)
    write_atomically(path, lambda temporary: temporary.write_text(document))


def lines_of(facts: Mapping[str, Any]) -> list[str]:
    """A line of a list for each fact of the machine."""
    return [f"- {name.replace('_', ' ')}: {value}" for name, value in facts.items()]


def today() -> str:
    """The date, as 2026-11-21."""
    return datetime.now().astimezone().date().isoformat()
