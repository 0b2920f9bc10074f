"""Python objects between ranks: whatever can be pickled, of another size on every rank."""

import numpy as np
import pytest

import tfdist
from tfdist.errors import ConfigError

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


def test_code_travels(world):
    """A lambda and a local class are sent with their code, a class of a module by its name."""
    rank = tfdist.rank()

    class Local:
        def __init__(self):
            self.rank = rank

    lambdas = tfdist.allgather_object(lambda: rank, name="lambdas")
    assert [function() for function in lambdas] == list(range(world))
    for root in range(world):
        assert tfdist.broadcast_object(Local(), root, name="local").rank == root
    assert all(type(error) is KeyError for error in tfdist.allgather_object(KeyError(rank), name="by name"))


def test_what_cannot_be_pickled_fails_alike(world):
    last = world - 1
    mine = (number for number in range(3)) if tfdist.rank() == last else 3
    for call in (tfdist.allgather_object, lambda value, name: tfdist.broadcast_object(value, last, name=name)):
        with pytest.raises(ConfigError) as caught:
            call(mine, name="settings")
        texts = tfdist.allgather_object(str(caught.value), name="texts")
        assert set(texts) == {texts[0]}
        assert texts[0].startswith(f"'settings': the object of rank {last} cannot be pickled there: TypeError: ")


class Refuses:
    """Cannot be made again on the last rank."""

    def __reduce__(self):
        return _made_again, ()


def _made_again():
    if tfdist.rank() == tfdist.size() - 1:
        raise RuntimeError("no such license")
    return 1


def test_what_cannot_be_unpickled_fails_alike(world):
    with pytest.raises(ConfigError) as caught:
        tfdist.broadcast_object(Refuses(), 0, name="license")
    texts = tfdist.allgather_object(str(caught.value), name="texts")
    assert set(texts) == {texts[0]}
    assert f"'license' cannot be unpickled on rank {world - 1} (the object of rank 0: RuntimeError: no such" in texts[0]
