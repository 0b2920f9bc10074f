"""Rows as text whose columns begin at the same place."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], indent: str = "") -> str:
    """A line for each row, its cells two blanks apart, with no blanks at its end.

    Args:
        rows: Cells of one line each, equally many in each row.
        indent: What each line begins with.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (zip(cells, widths, strict=True) for cells in rows)
    return "\n".join(indent + "  ".join(cell.ljust(width) for cell, width in line).rstrip() for line in lines)
