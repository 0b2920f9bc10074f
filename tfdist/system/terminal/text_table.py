"""Formats rows as text with aligned columns."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], indent: str = "") -> str:
    """One line per row, cells separated by two spaces, without trailing spaces.

    Args:
        rows: Single-line cells, the same number in each row.
        indent: What each line starts with.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (zip(cells, widths, strict=True) for cells in rows)
    return "\n".join(indent + "  ".join(cell.ljust(width) for cell, width in line).rstrip() for line in lines)
