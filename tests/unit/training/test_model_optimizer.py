"""Where the optimizers of a model are looked for, and how another process builds the same."""

import collections

import keras
import pytest

from tfdist.errors import ConfigError
from tfdist.training import model_optimizer

Pair = collections.namedtuple("Pair", "first second")


class Holder(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="out")], name="inner")
        self.inner.compile("adam", "mse")
        self.listed = [keras.optimizers.SGD(), {"deep": keras.optimizers.Adam()}]
        self.pair = Pair(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), 1)
        self.members = {keras.optimizers.SGD(name="b"), keras.optimizers.SGD(name="a")}
        self.again = self.listed[0]
        self.inside = self.pair.first.inner_optimizer

    def call(self, x):
        return self.inner(x)


@pytest.fixture
def model():
    made = Holder()
    made.compile("rmsprop", "mse")
    return made


def test_each_is_found_once_and_the_compiled_one_first(model):
    found = model_optimizer.named_optimizers(model)
    names = ["optimizer", "listed[0]", "listed[1]['deep']", "pair[0]", "members[0]", "members[1]", "inner.optimizer"]
    assert sorted(found) == sorted(names)
    assert next(iter(found.values())) is model.optimizer
    assert [found[f"members[{place}]"].name for place in (0, 1)] == ["a", "b"]
    assert found["pair[0]"] is model.pair.first


def test_layers_of_one_name_hide_no_optimizer():
    outer = keras.Sequential([keras.Input((2,))])
    for part in range(2):
        inner = keras.Sequential([keras.layers.Dense(2)], name="same")
        inner.compile("sgd")
        outer.add(keras.Sequential([inner], name=f"part{part}"))
    assert len(model_optimizer.optimizers_of(outer)) == 2


def test_built_as_another_process_has_it(model):
    _, bias = model.inner.trainable_variables
    model.listed[0].build([bias])
    layout = model_optimizer.layout_of(model)
    other = Holder()
    other.compile("rmsprop", "mse")
    model_optimizer.build_as(other, layout)
    assert [each.built for each in model_optimizer.optimizers_of(other)] == [places is not None for places in layout]
    assert other.listed[0]._trainable_variables[0] is other.inner.trainable_variables[1]
    assert model_optimizer.layout_of(other) == layout


def test_another_number_of_optimizers_is_refused(model):
    with pytest.raises(ConfigError, match="has 7 optimizers"):
        model_optimizer.build_as(model, [None])


def test_a_variable_outside_of_the_model_is_refused(model):
    model.listed[0].build([keras.Variable([1.0])])
    layout = model_optimizer.layout_of(model)
    other = Holder()
    other.compile("rmsprop", "mse")
    with pytest.raises(ConfigError, match=r"listed\[0\] of model .* not among the model's 2 weights"):
        model_optimizer.build_as(other, layout)
