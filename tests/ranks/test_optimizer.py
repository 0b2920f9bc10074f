"""The distributed optimizer beyond parity: missing and sparse gradients, settings, files."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.testing.parity import assert_close, assert_identical_on_ranks


def variables(*shapes):
    return [tf.Variable(tf.ones(shape), name=f"v{index}") for index, shape in enumerate(shapes)]


@pytest.mark.ranks(1, 2, 3, 4)
def test_none_gradients_are_left_out(world):
    first, second, third = variables([3], [2], [2, 2])
    optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(1.0))
    share = tfdist.rank() + 1.0
    gradients = [tf.fill([3], share), None, tf.fill([2, 2], 10 * share)]
    optimizer.apply_gradients(zip(gradients, [first, second, third], strict=True))
    mean = (world + 1) / 2
    assert np.array_equal(first, np.full(3, 1 - mean, "float32"))
    assert np.array_equal(second, np.ones(2, "float32"))
    assert np.array_equal(third, np.full((2, 2), 1 - 10 * mean, "float32"))


def embedding_parts(world, sparse_as_dense, compiled):
    table = tf.Variable(tf.zeros([6, 2]))
    optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(1.0), sparse_as_dense=sparse_as_dense)
    optimizer.build([table])
    rows = {rank: ([rank, 5, 5][: rank % 3 + 1], rank + 1.0) for rank in range(world)}

    def step():
        indices, value = rows[tfdist.rank()]
        slices = tf.IndexedSlices(tf.fill([len(indices), 2], value), tf.constant(indices), tf.constant([6, 2]))
        optimizer.apply_gradients([(slices, table)])

    (tf.function(step) if compiled else step)()
    expected = np.zeros((6, 2), "float32")
    for indices, value in rows.values():
        for index in indices:
            expected[index] -= value / world
    return table, expected


@pytest.mark.ranks(1, 2, 3, 4)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("sparse_as_dense", [False, True], ids=["gathered", "dense"])
def test_indexed_slices(world, sparse_as_dense, compiled):
    """Ranks touch different numbers of rows, some of them the same and one of them twice."""
    table, expected = embedding_parts(world, sparse_as_dense, compiled)
    assert_identical_on_ranks([table])
    assert_close([table], [expected], relative=1e-6)


@pytest.mark.parametrize("factor", [1.0, 2.0, 0.5])
def test_predivide_leaves_the_average(world, factor):
    (variable,) = variables([4])
    optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(1.0), gradient_predivide_factor=factor)
    optimizer.apply_gradients([(tf.fill([4], float(tfdist.rank())), variable)])
    assert_close([variable], [np.full(4, 1 - (world - 1) / 2)], relative=1e-6)


def test_sum(world):
    (variable,) = variables([4])
    optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(1.0), op=tfdist.Sum)
    optimizer.apply_gradients([(tf.fill([4], tfdist.rank() + 1.0), variable)])
    assert np.array_equal(variable, np.full(4, 1 - world * (world + 1) / 2, "float32"))


def test_a_rank_without_a_gradient_is_named(world):
    """One rank has a None where the others have a gradient: the same error everywhere."""
    first, second = variables([3], [2])
    optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(1.0))
    gradients = [tf.ones([3]), None if tfdist.rank() == 0 else tf.ones([2])]
    with pytest.raises(tfdist.errors.MismatchError) as caught:
        optimizer.apply_gradients(zip(gradients, [first, second], strict=True))
    texts = tfdist.allgather_object(str(caught.value), name="texts")
    assert len(set(texts)) == 1
    assert "rank 0" in texts[0]


def test_saved_model_is_that_of_one_process(shared_tmp_path):
    """The scaled rate stays in memory; the file has the class, configuration and rate of the plain optimizer."""
    path = shared_tmp_path / f"rank{tfdist.rank()}.keras"
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss="mse")
    tfdist.optimizer.distribute(model.optimizer)
    model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
    tfdist.optimizer.scale_learning_rate(model.optimizer, tfdist.size())
    assert float(model.optimizer.learning_rate) == pytest.approx(0.1 * tfdist.size())
    model.save(path)
    loaded = keras.models.load_model(path)
    assert type(loaded.optimizer) is keras.optimizers.SGD
    assert float(loaded.optimizer.learning_rate) == pytest.approx(0.1)
    assert_close(loaded.optimizer.variables[2:], model.optimizer.variables[2:], relative=0)
    assert loaded.optimizer.get_config()["learning_rate"] == pytest.approx(0.1)
