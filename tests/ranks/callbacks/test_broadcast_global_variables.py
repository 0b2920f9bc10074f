"""No step is taken from weights that differ."""

import keras
import numpy as np
import pytest

import tfdist
from tfdist.callbacks import BroadcastGlobalVariablesCallback
from tfdist.testing.parity import assert_identical_on_ranks


def new_model():
    """Weights, optimizer state and momentum differ by rank."""
    keras.utils.set_random_seed(tfdist.rank())
    model = keras.Sequential(
        [keras.Input((2,)), keras.layers.Dense(3), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
    )
    model.compile(tfdist.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)), loss="mse")
    model.optimizer.build(model.trainable_variables)
    for slot in model.optimizer.momentums:
        slot.assign(slot + tfdist.rank() + 1.0)
    return model


def fit(model, *callbacks):
    x = np.random.default_rng(tfdist.rank()).normal(size=(8, 2)).astype("float32")
    model.fit(x, x[:, :1], batch_size=4, verbose=0, callbacks=list(callbacks))


class FirstStep(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 0:
            optimizer = [np.asarray(variable) for variable in self.model.optimizer.variables]
            self.state = [*self.model.get_weights(), *optimizer]


@pytest.mark.ranks(1, 2, 3)
def test_before_the_first_step(world):
    root = world - 1
    model, first = new_model(), FirstStep()
    mine = model.get_weights()
    fit(model, first, BroadcastGlobalVariablesCallback(root))
    assert_identical_on_ranks(first.state, "state before the first step")
    expected = tfdist.broadcast_object(mine, root, name="weights of the root")
    assert all(np.array_equal(a, b) for a, b in zip(first.state, expected, strict=False))
    assert float(first.state[len(mine) + 2].ravel()[0]) == root + 1.0
    assert_identical_on_ranks(model.get_weights())


def test_on_every_fit(world):
    model = new_model()
    callback = BroadcastGlobalVariablesCallback(0)
    fit(model, callback)
    model.layers[0].bias.assign(np.full(3, float(tfdist.rank())))
    fit(model, callback)
    assert_identical_on_ranks(model.get_weights())


def test_local_variables_stay(world):
    model, first = new_model(), FirstStep()
    kernel = model.layers[0].kernel
    mine = kernel.numpy()
    fit(model, first, BroadcastGlobalVariablesCallback(0, local_variables=[kernel]))
    np.testing.assert_array_equal(first.state[0], mine)


@pytest.mark.parametrize("arguments", [{"root_rank": 9}, {"root_rank": -1}, {"root_rank": 0, "device": "/cpu:0"}])
def test_what_cannot_be_honoured_is_refused(world, arguments):
    with pytest.raises(tfdist.errors.ConfigError):
        BroadcastGlobalVariablesCallback(**arguments)


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("way", ["list", "one", "inner", "registered"])
def test_local_variables_keep_their_values(world, way):
    """Horovod takes a single variable too, and one that is registered later."""
    model, first = new_model(), FirstStep()
    kernel = model.layers[0].kernel
    given = {"list": [kernel], "one": kernel, "inner": kernel.value, "registered": None}[way]
    callback = BroadcastGlobalVariablesCallback(world - 1, local_variables=given)
    if way == "registered":
        callback.register_local_var(kernel)
    mine = model.get_weights()
    root = tfdist.broadcast_object(mine, world - 1, name="weights of the root")
    fit(model, first, callback)
    assert np.array_equal(first.state[0], mine[0])
    assert all(np.array_equal(a, b) for a, b in zip(first.state[1 : len(mine)], root[1:], strict=True))
    differ = [not np.array_equal(array, mine[0]) for array in tfdist.allgather_object(mine[0])]
    assert sum(differ) == world - 1
