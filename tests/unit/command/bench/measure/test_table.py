"""Tables as text and as Markdown."""

from __future__ import annotations

import pytest

from tfdist.command.bench.measure import table


def test_columns_are_aligned() -> None:
    text = table.aligned(["size", "us"], [["4KB", "1.5"], ["100MB", "12345.0"]])
    assert text.splitlines() == ["size        us", "4KB        1.5", "100MB  12345.0"]


def test_no_line_ends_in_spaces() -> None:
    assert table.aligned(["name", ""], [["a", ""]]).splitlines() == ["name", "a"]


def test_a_row_of_another_length_is_an_error() -> None:
    with pytest.raises(ValueError):
        table.aligned(["a", "b"], [["1"]])


def test_markdown() -> None:
    assert table.markdown(["what", "ms"], [["a|b", "1"]]).splitlines() == [
        "| what | ms |",
        "| --- | ---: |",
        "| a\\|b | 1 |",
    ]
