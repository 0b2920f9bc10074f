"""Which rank the others wait for."""

import pytest

from tfdist.callbacks.fit.straggler import Straggler, find


@pytest.mark.parametrize(
    ("waits", "rank", "seconds"),
    [
        ([0.0, 4.0, 4.0], 0, 4.0),
        ([4.5, 0.5], 1, 4.0),
        ([3.0, 3.0, 1.0, 3.0], 2, 2.0),
        ([2.0, 2.0, 2.0], 0, 0.0),  # slow in turn
        ([5.0], 0, 0.0),
    ],
)
def test_find(waits, rank, seconds):
    assert find(waits) == Straggler(rank, seconds)
