"""Parsers of what comes from a network or a file bear any bytes; `make fuzz` looks for them by coverage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from target import TARGETS

NAMES = [target.__name__ for target in TARGETS]


@pytest.mark.parametrize("target", TARGETS, ids=NAMES)
def test_what_a_search_begins_from(target):
    for seed in TARGETS[target]:
        target(seed)


@pytest.mark.parametrize("target", TARGETS, ids=NAMES)
@given(data=st.binary(max_size=300))
def test_random_bytes(target, data):
    target(data)


@pytest.mark.parametrize("target", TARGETS, ids=NAMES)
@given(data=st.data())
def test_random_changes(target, data):
    """Of an input that is nearly accepted: bytes in place of others, of another number."""
    seed = data.draw(st.sampled_from(TARGETS[target]))
    begin = data.draw(st.integers(0, len(seed)))
    end = data.draw(st.integers(begin, min(len(seed), begin + 8)))
    target(seed[:begin] + data.draw(st.binary(max_size=8)) + seed[end:])
