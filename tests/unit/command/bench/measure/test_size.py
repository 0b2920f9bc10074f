"""Sizes in bytes, read and written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.command.bench.measure import size
from tfdist.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4096", 4096),
        ("1", 1),
        ("7B", 7),
        ("4KB", 4096),
        ("4k", 4096),
        ("4KiB", 4096),
        (" 4 kb ", 4096),
        ("1MB", 1_048_576),
        ("100MB", 104_857_600),
        ("2G", 2_147_483_648),
    ],
)
def test_forms(text: str, expected: int) -> None:
    assert size.parse(text) == expected


@pytest.mark.parametrize("text", ["", "0", "0MB", "-4KB", "1.5MB", "4TB", "KB", "4 4", "4096x", "٤"])
def test_refused_with_what_was_received_and_expected(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        size.parse(text)
    assert repr(text) in str(caught.value) and "4KB" in str(caught.value)


@pytest.mark.parametrize(("value", "text"), [(4096, "4KB"), (104_857_600, "100MB"), (1 << 30, "1GB"), (1025, "1025B")])
def test_show(value: int, text: str) -> None:
    assert size.show(value) == text


@given(st.integers(1, 1 << 45))
def test_show_is_read_back(value: int) -> None:
    assert size.parse(size.show(value)) == value
