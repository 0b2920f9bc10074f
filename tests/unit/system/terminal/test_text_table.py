"""Columns of text."""

from __future__ import annotations

import pytest

from tfdist.system.terminal.text_table import aligned


def test_column_width_and_no_trailing_space() -> None:
    assert aligned([("a", "long head"), ("wide cell", "b")]) == "a          long head\nwide cell  b"


def test_every_line_is_indented() -> None:
    assert aligned([["a", "b"], ["cc", ""]], indent="  ") == "  a   b\n  cc"


def test_rows_of_unequal_length_are_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        aligned([("a", "b"), ("c",)])
