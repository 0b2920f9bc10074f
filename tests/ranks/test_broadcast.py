"""Broadcast: every rank gets one rank's tensors, or takes on its variables, in place."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.ops.graph import order
from tfdist.testing import assert_equal, summable

DTYPES = ["bool", "uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
MODES = pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
SIZES = pytest.mark.ranks(1, 2, 3, 4)
SHAPES = [(), (7,), (2, 3), (0, 4)]


def values_of(rank, dtype):
    return [summable(shape, dtype, rank, seed) for seed, shape in enumerate(SHAPES)]


def assert_same(tensors, expected):
    for tensor, array in zip(tensors, expected, strict=True):
        assert_equal(tensor, array)


@SIZES
@MODES
@pytest.mark.parametrize("dtype", DTYPES)
def test_from_every_root(world, dtype, wrap):
    mine = [tf.constant(value) for value in values_of(tfdist.rank(), dtype)]
    received = wrap(lambda: [[tfdist.broadcast(x, root, name="x") for x in mine] for root in range(world)])()
    for root in range(world):
        assert_same(received[root], values_of(root, dtype))
    assert_same(mine, values_of(tfdist.rank(), dtype))  # the inputs were not overwritten


@SIZES
@MODES
def test_group_of_all_dtypes(world, wrap):
    root = world // 2
    mine = [tf.constant(value) for dtype in DTYPES for value in values_of(tfdist.rank(), dtype)]
    received = wrap(lambda: tfdist.grouped_broadcast(mine, root, name="group"))()
    assert_same(received, [value for dtype in DTYPES for value in values_of(root, dtype)])


@SIZES
def test_group_of_nothing(world):
    assert tfdist.grouped_broadcast([], 0, name="nothing") == []
    tfdist.broadcast_variables([], 0)  # sends nothing, so ranks may differ in calling it
    if tfdist.rank() == 0:
        tfdist.broadcast_variables([], 0)


@SIZES
@pytest.mark.parametrize("count", [100_003, 2_000_003], ids=["spread over ranks", "longer than a bucket"])
def test_large_tensor(world, count):
    """The root does not send everything to everybody; what each rank passes on is not equally long."""
    for root in (0, world - 1):
        received = tfdist.broadcast(summable((count,), "uint8", tfdist.rank()), root, name="large")
        assert_same([received], [summable((count,), "uint8", root)])


@SIZES
@MODES
@pytest.mark.parametrize("function", [tfdist.broadcast_variables, tfdist.broadcast_], ids=lambda f: f.__name__)
def test_variables_in_place(world, function, wrap):
    """A tensor read before keeps its value."""
    root = world - 1
    variables = [tf.Variable(value) for dtype in DTYPES for value in values_of(tfdist.rank(), dtype)]
    before = [variable.value() for variable in variables]
    wrap(lambda: function(variables, root))()
    assert_same(variables, [value for dtype in DTYPES for value in values_of(root, dtype)])
    assert_same(before, [value for dtype in DTYPES for value in values_of(tfdist.rank(), dtype)])


@SIZES
def test_keras_variables(world):
    """Names may differ by rank; a variable given twice is written once."""
    name = f"model_of_rank_{tfdist.rank()}"
    variables = [
        keras.Variable(tf.fill([2, 2], tfdist.rank() + 1.0), name=name),
        keras.Variable(tf.constant(tfdist.rank(), tf.int64), dtype="int64", trainable=False, name=f"{name}_count"),
    ]
    tfdist.broadcast_variables([*variables, variables[0]], root_rank=world - 1)
    assert np.array_equal(variables[0], np.full((2, 2), float(world)))
    assert int(variables[1]) == world - 1


@SIZES
def test_python_values(world):
    """What TensorFlow makes a tensor of may be given as it is."""
    assert int(tfdist.broadcast(tfdist.rank() + 5, world - 1, name="int")) == world + 4
    received = tfdist.broadcast([1.5 * tfdist.rank(), 2.0], np.int64(world - 1), name="list")
    assert np.array_equal(received, [1.5 * (world - 1), 2.0])


@SIZES
@MODES
def test_variables_apart_from_where_collectives_run(world, wrap, monkeypatch):
    """As those of the CPU where a GPU runs the collectives."""
    order.resource()
    monkeypatch.setattr(order, "collective_device", lambda: "GPU:0")
    variables = [tf.Variable(values, dtype="int32") for values in ([tfdist.rank()], [1, 2 * tfdist.rank()])]
    wrap(lambda: tfdist.broadcast_variables(variables, root_rank=world - 1))()
    assert_same(variables, [np.int32([world - 1]), np.int32([1, 2 * (world - 1)])])
