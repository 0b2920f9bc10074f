"""Alltoall: each rank's rows to each rank, with equal splits and with any others, zero included."""

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.testing import assert_equal, summable

DTYPES = ["bool", "uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
MODES = pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
SIZES = pytest.mark.ranks(1, 2, 3, 4)

# Name -> rows from one rank to another.
PATTERNS = {
    "another number for each pair": lambda source, target: (source + 2 * target) % 4 + (source == target),
    "all to rank 0": lambda source, target: 0 if target else source + 1,
    "all from rank 0": lambda source, target: 0 if source else target + 1,
    "to the next, nothing to itself": lambda source, target: 2 if target == source + 1 else 0,
    "nothing": lambda source, target: 0,
}


def splits_of(name, rank, world):
    return [PATTERNS[name](rank, target) for target in range(world)]


def rows_of(name, dtype, rank, world, tail=(2,)):
    return summable((sum(splits_of(name, rank, world)), *tail), dtype, rank, seed=list(PATTERNS).index(name))


def expected_rows(name, dtype, rank, world, tail=(2,)):
    """What `rank` gets: from each rank in turn the part that is meant for it."""
    parts = []
    for source in range(world):
        splits = splits_of(name, source, world)
        begin = sum(splits[:rank])
        parts.append(rows_of(name, dtype, source, world, tail)[begin : begin + splits[rank]])
    return np.concatenate(parts)


@SIZES
@MODES
@pytest.mark.parametrize("dtype", DTYPES)
def test_splits(world, dtype, wrap):
    rank = tfdist.rank()

    def exchange():
        return {
            name: tfdist.alltoall(rows_of(name, dtype, rank, world), splits_of(name, rank, world), name=name)
            for name in PATTERNS
        }

    for name, (received, counts) in wrap(exchange)().items():
        assert_equal(received, expected_rows(name, dtype, rank, world))
        assert_equal(counts, np.array([PATTERNS[name](source, rank) for source in range(world)], "int32"))


@SIZES
@MODES
@pytest.mark.parametrize("dtype", DTYPES)
def test_equal_splits(world, dtype, wrap):
    """Without splits a tensor alone comes back; with zero rows, none."""
    rank = tfdist.rank()
    mine = [tf.constant(summable((rows * world, 3), dtype, rank, seed=rows)) for rows in (0, 1, 2)]
    for rows, received in enumerate(wrap(lambda: [tfdist.alltoall(x, name="x") for x in mine])()):
        sent = [summable((rows * world, 3), dtype, source, seed=rows) for source in range(world)]
        assert_equal(received, np.concatenate([part[rows * rank : rows * (rank + 1)] for part in sent]))


@SIZES
@pytest.mark.parametrize("tail", [(), (2, 3), (0,)], ids=["numbers", "matrices", "rows without elements"])
def test_shapes_of_rows(world, tail):
    name = "another number for each pair"
    rank = tfdist.rank()
    received, _ = tfdist.alltoall(rows_of(name, "int64", rank, world, tail), splits_of(name, rank, world), name="x")
    assert_equal(received, expected_rows(name, "int64", rank, world, tail))


@SIZES
@pytest.mark.parametrize("kind", ["int32", "int64", "uint8", "variable"])
def test_types_of_splits(world, kind):
    name = "another number for each pair"
    rank = tfdist.rank()
    splits = splits_of(name, rank, world)
    given = tf.Variable(splits) if kind == "variable" else tf.constant(splits, kind)
    received, counts = tfdist.alltoall(rows_of(name, "float32", rank, world), given, name="x")
    assert_equal(received, expected_rows(name, "float32", rank, world))
    assert counts.dtype == tf.int32


@SIZES
def test_rows_return_by_the_splits_that_came_with_them(world):
    """There and back again, as a lookup in a table in parts does; the splits are known at run time only."""
    name = "another number for each pair"
    rank = tfdist.rank()

    @tf.function(input_signature=[tf.TensorSpec([None, 2]), tf.TensorSpec([None], tf.int32)])
    def there_and_back(rows, splits):
        received, counts = tfdist.alltoall(rows, splits, name="there")
        return tfdist.alltoall(received * 2.0, counts, name="back")

    mine = rows_of(name, "float32", rank, world)
    returned, counts = there_and_back(mine, tf.constant(splits_of(name, rank, world)))
    assert_equal(returned, 2 * mine)
    assert np.array_equal(counts, splits_of(name, rank, world))


@SIZES
def test_large_rows(world):
    """More than travels in one message, but to one rank only one row."""
    rank = tfdist.rank()
    splits = [1] + [20_000 + target for target in range(1, world)]
    sent = [summable((sum(splits), 3), "float32", source) for source in range(world)]
    received, _ = tfdist.alltoall(sent[rank], splits, name="large")
    begin = sum(splits[:rank])
    assert_equal(received, np.concatenate([part[begin : begin + splits[rank]] for part in sent]))
