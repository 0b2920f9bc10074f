"""Updates that are held back change nothing, and are all there is to know about what was asked for."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.training import distribution


class Optimizer(distribution.Holding, keras.optimizers.SGD):
    pass


def asked_of(optimizer, variables):
    gradients = [tf.ones(2), None]
    optimizer.apply_gradients(zip(gradients, variables, strict=True))
    return gradients


@pytest.mark.parametrize("in_graph", [False, True])
def test_nothing_is_applied_or_counted_inside(in_graph):
    optimizer, variables = Optimizer(1.0), [tf.Variable([1.0, 2.0]), tf.Variable(3.0)]
    optimizer.build(variables)

    def step():
        with distribution.held() as updates:
            gradients = asked_of(optimizer, variables)
        (only,) = updates
        assert only.optimizer is optimizer
        assert all(one is other for one, other in zip(only.gradients, gradients, strict=True))
        assert all(one is other for one, other in zip(only.variables, variables, strict=True))

    (tf.function(step) if in_graph else step)()
    assert variables[0].numpy().tolist() == [1.0, 2.0]
    assert int(optimizer.iterations) == 0
    asked_of(optimizer, variables)
    assert variables[0].numpy().tolist() == [0.0, 1.0]
    assert int(optimizer.iterations) == 1


def test_an_optimizer_knows_its_variables():
    optimizer, variable = Optimizer(1.0), tf.Variable([1.0])
    optimizer.build([variable])
    with distribution.held() as updates:
        optimizer.apply([tf.ones(1)])
    assert [np.array_equal(one, variable) for one in updates[0].variables] == [True]


def test_an_error_ends_it():
    optimizer, variable = Optimizer(1.0), tf.Variable([1.0])
    with pytest.raises(RuntimeError), distribution.held():
        raise RuntimeError
    optimizer.apply_gradients([(tf.ones(1), variable)])
    assert variable.numpy().tolist() == [0.0]
