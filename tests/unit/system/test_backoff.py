"""Pauses after failures."""

import pytest

from tfdist.system.backoff import pause_s


@pytest.mark.parametrize(("failures", "seconds"), [(0, 0.5), (1, 0.5), (2, 1), (3, 2), (7, 30), (5000, 30)])
def test_doubles_up_to_the_longest(failures, seconds):
    assert pause_s(0.5, 30, failures) == seconds
