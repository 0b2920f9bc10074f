"""Allgather: the rows of all ranks in the order of the ranks, however many each has."""

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.testing import assert_equal, summable

DTYPES = ["bool", "uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
MODES = pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
SIZES = pytest.mark.ranks(1, 2, 3, 4)

# Name -> shape on a rank.
SHAPES = {
    "as many on every rank": lambda rank: (2, 3),
    "another number on every rank": lambda rank: (rank + 1, 3),
    "none on rank 0": lambda rank: (rank, 2, 2),
    "on rank 0 only": lambda rank: (0 if rank else 3,),
    "none at all": lambda rank: (0, 4),
    "rows without elements": lambda rank: (rank + 1, 0),
}


def rows_of(name, dtype, rank):
    return summable(SHAPES[name](rank), dtype, rank, seed=list(SHAPES).index(name))


def all_rows(name, dtype, world):
    return np.concatenate([rows_of(name, dtype, rank) for rank in range(world)])


@SIZES
@MODES
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows(world, dtype, wrap):
    mine = {name: tf.constant(rows_of(name, dtype, tfdist.rank())) for name in SHAPES}
    gathered = wrap(lambda: {name: tfdist.allgather(rows, name=name) for name, rows in mine.items()})()
    for name, tensor in gathered.items():
        assert_equal(tensor, all_rows(name, dtype, world))


@SIZES
@MODES
@pytest.mark.parametrize("dtype", DTYPES)
def test_scalar_is_a_row(world, dtype, wrap):
    mine = tf.constant(summable((), dtype, tfdist.rank()))
    expected = np.stack([summable((), dtype, rank) for rank in range(world)])
    assert_equal(wrap(lambda x: tfdist.allgather(x, name="scalar"))(mine), expected)


@SIZES
@MODES
def test_group_of_all_dtypes(world, wrap):
    """Each tensor has its own number of rows on each rank; order and types are kept."""
    group = [(name, dtype) for name in SHAPES for dtype in DTYPES]
    mine = [tf.constant(rows_of(name, dtype, tfdist.rank())) for name, dtype in group]
    gathered = wrap(lambda: tfdist.grouped_allgather(mine, name="group"))()
    assert len(gathered) == len(group)
    for tensor, (name, dtype) in zip(gathered, group, strict=True):
        assert_equal(tensor, all_rows(name, dtype, world))


@SIZES
def test_group_of_nothing(world):
    assert tfdist.grouped_allgather([], name="nothing") == []


@SIZES
def test_large_rows(world):
    """More than travels in one message; the last rank has most of it."""
    counts = [1 if rank < world - 1 else 30_000 for rank in range(world)]
    gathered = tfdist.allgather(summable((counts[tfdist.rank()], 3), "float32", tfdist.rank()), name="large")
    assert_equal(gathered, np.concatenate([summable((n, 3), "float32", rank) for rank, n in enumerate(counts)]))


@SIZES
def test_a_trace_serves_any_number_of_rows(world):
    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.int32)])
    def gather(x):
        return tfdist.allgather(x, name="rows")

    for more in (0, 1, 5):
        parts = [summable((rank * more, 2), "int32", rank) for rank in range(world)]
        assert_equal(gather(parts[tfdist.rank()]), np.concatenate(parts))
    assert gather.experimental_get_tracing_count() == 1
