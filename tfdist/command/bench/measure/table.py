"""Formats rows as an aligned text table or as Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell; the first aligned left, the others right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return "\n".join(_line(cells, widths) for cells in [head, *rows])


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same as a Markdown table; bars in cells are escaped."""
    rule = ["---", *("---:" for _ in head[1:])]
    lines = [head, rule, *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |" for cells in lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = zip(cells, widths, strict=True)
    return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]).rstrip()
