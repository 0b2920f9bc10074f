"""Python objects between ranks: whatever can be pickled, of another size on every rank."""

import numpy as np
import pytest

import tfdist

SIZES = pytest.mark.ranks(1, 2, 3, 4)


def object_of(rank):
    """Rank 0 has the smallest; the last one's is longer than a message."""
    return {"rank": rank, "text": "x" * rank**8, "array": np.arange(rank), "nothing": None}


def assert_object_of(rank, received):
    expected = object_of(rank)
    assert np.array_equal(received.pop("array"), expected.pop("array"))
    assert received == expected


@SIZES
def test_allgather(world):
    received = tfdist.allgather_object(object_of(tfdist.rank()), name="objects")
    assert len(received) == world
    for rank, part in enumerate(received):
        assert_object_of(rank, part)


@SIZES
def test_broadcast_from_every_root(world):
    for root in range(world):
        assert_object_of(root, tfdist.broadcast_object(object_of(tfdist.rank()), root, name="object"))


@SIZES
def test_only_the_root_needs_an_object(world):
    unpicklable = (number for number in range(3))
    mine = object_of(world - 1) if tfdist.rank() == world - 1 else unpicklable
    assert_object_of(world - 1, tfdist.broadcast_object(mine, root_rank=world - 1))


@SIZES
def test_function_that_broadcasts(world):
    from_last = tfdist.broadcast_object_fn(root_rank=world - 1, name="settings")
    for offset in (0, 7):
        assert from_last(tfdist.rank() + offset) == world - 1 + offset
    assert tfdist.broadcast_object_fn()([tfdist.rank()]) == [0]
