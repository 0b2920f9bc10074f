"""Horovod's names for elastic training: its order of arguments, its attributes, and what is refused."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
import tfdist.keras as hvd_keras
import tfdist.tensorflow as hvd
from tfdist.errors import ConfigError

pytestmark = pytest.mark.ranks(1, 2)


def built():
    keras.utils.set_random_seed(tfdist.rank())
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def change(model):
    for variable in model.variables:
        variable.assign(variable + 1)


@pytest.mark.parametrize("make", [hvd_keras.elastic.KerasState, hvd.elastic.TensorFlowKerasState])
def test_a_model_in_horovods_order(world, make):
    model, other = built(), keras.optimizers.Adam(0.3)
    state = make(model, other, batch=tfdist.rank() + 1)
    assert state.model is model and state.optimizer is other
    assert len(state.variables) == 2 + len(other.variables) + len(model.optimizer.variables)
    state.sync()
    before = model.get_weights()
    assert before[0].tolist() == tfdist.broadcast_object(before[0].tolist(), 0)
    state.save()
    change(model)
    state.batch = 9
    state.restore()
    assert state.batch == 1
    for one, was in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(one, was)


def test_variables_in_horovods_order(world):
    variables = [tf.Variable([1.0 + tfdist.rank()]), keras.Variable(np.arange(2))]
    state = hvd.elastic.TensorFlowState(variables, None, step=3)
    assert state.variables == variables
    state.sync()
    variables[0].assign([7.0])
    state.restore()
    assert (variables[0].numpy().tolist(), state.step) == ([1.0], 3)


def test_a_function_runs_with_its_arguments_and_result(world):
    state = hvd.elastic.TensorFlowKerasState(built(), step=tfdist.rank())

    @hvd_keras.elastic.run
    def train(state, factor, offset):
        return factor * (state.step + 1) + offset

    assert hvd_keras.elastic.run is hvd.elastic.run
    assert train(state, 2, offset=5) == 7


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (hvd.elastic.TensorFlowState, "received None. TensorFlow 2 has no list of all variables"),
        (lambda: hvd.elastic.TensorFlowState([]), r"received \[\]"),
        (lambda: hvd.elastic.TensorFlowState([tf.Variable(1.0)], object()), "session= is not supported"),
        (lambda: hvd.elastic.TensorFlowKerasState(built(), None, keras.backend), "backend= is not supported"),
    ],
)
def test_what_cannot_be_honoured_is_refused(world, call, text):
    with pytest.raises(ConfigError, match=text):
        call()


def test_callbacks_are_those_of_tfdist(world):
    for name in ("CommitStateCallback", "UpdateBatchStateCallback", "UpdateEpochStateCallback"):
        assert getattr(hvd_keras.elastic, name) is getattr(tfdist.callbacks, name)
