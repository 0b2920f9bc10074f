"""The saved state of a training: by which names it is captured, and that another model gets all of it."""

import keras
import numpy as np
import pytest

import tfdist
from tfdist.native import keras_version
from tfdist.training import model_state, optimizer

pytestmark = pytest.mark.ranks(1, 2)


def new_model(units=2):
    inner = keras.Sequential([keras.layers.Dropout(0.5, seed=4), keras.layers.BatchNormalization()])
    layers = [keras.Input((3,)), keras.layers.Dropout(0.5, seed=1), inner, keras.layers.Dense(units)]
    model = keras.Sequential([*layers, keras.layers.GaussianNoise(0.1, seed=2)])
    model.second = keras.optimizers.SGD(0.3, momentum=0.9)
    model.compile(optimizer.distribute(keras.optimizers.Adam(0.01)), "mse", metrics=["mae"])
    return model


def trained(units=2):
    model = new_model(units)
    model.second.build(model.trainable_variables[-1:])
    optimizer.scale_learning_rate(model.optimizer, 3)
    samples = np.full((4, 3), tfdist.rank() + 1.0, np.float32)
    model.train_on_batch(samples, np.ones((4, units), np.float32))
    return model


def values(variables):
    return [np.array(variable).tobytes() for variable in variables]


def seeds(model):
    return [variable for variable in model.variables if keras_version.is_seed_state(variable)]


def test_names_of_what_all_ranks_have_alike(world):
    """Files have them."""
    expected = [f"weight/{index}" for index in range(6)]
    expected += [f"optimizer/{index}" for index in range(2 + 2 * 4)] + ["optimizer class", "optimizer updates"]
    expected += [f"optimizer 1/{index}" for index in range(2 + 1)] + ["optimizer 1 class", "optimizer 1 updates"]
    arrays = model_state.capture(trained())
    assert sorted(arrays) == sorted(expected)
    assert arrays["optimizer 1 updates"].tolist() == [5]
    assert arrays["optimizer/1"] == pytest.approx(0.01)  # that of one process


def test_names_of_what_a_rank_has_for_itself(world):
    state = model_state.capture_of_rank(trained(), in_epoch=True)
    rates = ["optimizer rate factor", "optimizer rate", "optimizer 1 rate factor", "optimizer 1 rate"]
    statistics = ["weight/2", "weight/3"] if world > 1 else []
    # Keras' own generator is there if something before has drawn from it.
    assert [name for name in state if name != "global seed"] == ["own/0", "own/1", "own/2", *rates, *statistics]
    assert state["optimizer rate factor"] == 3


def test_another_model_gets_all_of_it(world):
    model, other = trained(), new_model()
    arrays, own = model_state.capture(model), model_state.capture_of_rank(model, in_epoch=False)
    model_state.set_rates(other, own)
    model_state.restore(other, arrays)
    model_state.set_rates(other, own)
    model_state.restore_of_rank(other, own)
    assert values(model_state.variables_of(other)) == values(model_state.variables_of(model))
    assert values(seeds(other)) == values(seeds(model))
    assert optimizer.learning_rate_scale(other.optimizer) == 3


def test_the_state_of_another_model_is_refused(world):
    arrays = model_state.capture(trained(units=3))
    with pytest.raises(ValueError, match=r"its weight variables have the shapes .*\(3, 3\).*Use the same model"):
        model_state.restore(new_model(), arrays)


def test_the_state_of_another_optimizer_is_refused(world):
    """Its variables have the same shapes, and mean something else."""
    model, other = new_model(), new_model()
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss="mse")
    other.compile(keras.optimizers.Adagrad(0.1), loss="mse")
    for each in (model, other):
        each.optimizer.build(each.trainable_variables)
    arrays = model_state.capture(model)
    with pytest.raises(ValueError, match=r"optimizer: SGD, whose variables mean something else in Adagrad"):
        model_state.restore(other, arrays)
    del arrays["optimizer class"]  # as files of before
    model_state.restore(other, arrays)


def test_what_is_shared(world):
    model = trained()
    variables = [*model.variables, *model.optimizer.variables]
    own = model.layers[-2].trainable_variables
    left = {id(variable) for variable in [*seeds(model), *own]}
    # A `keras.Variable` and what it holds are one and the same.
    for form in (own, [variable.value for variable in own]):
        found = [id(variable) for variable in model_state.shared(variables, form)]
        assert found == [id(variable) for variable in variables if id(variable) not in left]
