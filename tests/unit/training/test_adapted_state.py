"""What is found of preprocessing layers in one process, and that functions are traced again where constants change."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.training import adapted_state
from tfdist.training.adapted_state import adapted_state_of, follow_variables

NUMBERS = np.arange(12, dtype="float32").reshape(6, 2)


class Lazy(keras.Model):
    """Layers in a list, a dict and a list inside of it, and a layer of its own that learns."""

    def __init__(self):
        super().__init__()
        self.towers = [keras.layers.StringLookup(vocabulary=["a", "b"], name="terms")]
        self.columns = {"age": [keras.layers.Discretization([1.0, 2.0], name="age")]}
        self.own = Offset(name="offset")
        self.own.adapt(NUMBERS)


class Offset(keras.layers.Layer):
    def adapt(self, data):
        self.smallest, self.codes, self.names = np.min(data), {"x": 1, "y": 2}, ["x", "y"]
        self.table = tf.constant([1, 2])


def adapted(layer, data):
    layer.adapt(data)
    return layer


def found(source):
    return {(state.path, state.what): state.value.tolist() for state in adapted_state_of(source)}


def test_every_kind_of_layer():
    layers = [
        adapted(keras.layers.StringLookup(name="string"), ["b", "a", "b"]),
        adapted(keras.layers.IntegerLookup(name="integer"), [7, 5, 7]),
        keras.layers.StringLookup(vocabulary=["c", "d"], invert=True, name="inverse"),
        adapted(keras.layers.TextVectorization(name="text", output_mode="tf_idf"), ["one two", "two"]),
        adapted(keras.layers.Discretization(num_bins=2, name="bins"), np.arange(8.0)),
        adapted(keras.layers.Normalization(name="adapted"), NUMBERS),
        keras.layers.Normalization(mean=3.0, variance=4.0, name="given"),
        keras.layers.StringLookup(name="not adapted"),
        keras.layers.Normalization(name="not built"),
        keras.layers.Hashing(3, name="hashing"),
    ]
    states = found(keras.Sequential(layers))
    weights = states.pop(("text", "TF-IDF weights"))
    assert len(weights) == 3 and weights[1] < weights[2]
    assert states == {
        ("string", "vocabulary"): [b"b", b"a"],
        ("integer", "vocabulary"): [7, 5],
        ("inverse", "vocabulary"): [b"c", b"d"],
        ("text", "vocabulary"): [b"two", b"one"],
        ("bins", "boundaries"): [3.0],
        ("adapted", "mean"): [[5.0, 6.0]],
        ("adapted", "variance"): [pytest.approx([35 / 3] * 2, rel=1e-6)],
        ("given", "mean"): 3.0,
        ("given", "variance"): 4.0,
        ("not adapted", "vocabulary"): [],
    }
    assert found(layers[3]).keys() == {("text", "vocabulary"), ("text", "TF-IDF weights")}


def test_layers_wherever_they_are():
    inner = Lazy()
    inputs = keras.Input((2,))
    shared = adapted(keras.layers.Normalization(name="normal"), NUMBERS)
    model = keras.Model(inputs, keras.layers.Dense(1)(shared(shared(inputs))))
    pair = keras.Sequential([inner, model], name="pair")
    names = (inner.name, model.name)
    assert found(pair).keys() == {
        (f"{names[0]}/terms", "vocabulary"),
        (f"{names[0]}/age", "boundaries"),
        *((f"{names[0]}/offset", what) for what in ("smallest", "codes", "names", "table")),
        *((f"{names[1]}/normal", what) for what in ("mean", "variance")),
    }
    left_out = {id(layer) for layer in (inner, shared)}
    assert adapted_state_of(pair, [layer for layer in pair._flatten_layers() if id(layer) in left_out]) == []


def test_feature_space():
    space = keras.utils.FeatureSpace({"age": "float_normalized", "city": "string_categorical"})
    rows = {"age": np.arange(4.0).reshape(4, 1), "city": [["x"], ["y"], ["x"], ["x"]]}
    space.adapt(tf.data.Dataset.from_tensor_slices(rows))
    values = {(what, str(value)) for (_, what), value in found(space).items()}
    assert ("vocabulary", "[b'x', b'y']") in values
    assert ("mean", "[[1.5]]") in values


def test_digests():
    def digest(*terms):
        return adapted_state.AdaptedState("", "", np.array(terms, object)).digest()

    assert digest(b"ab", b"c") == digest(b"ab", b"c")
    assert len({digest(b"ab", b"c"), digest(b"a", b"bc"), digest(b"c", b"ab"), digest(b"ab"), digest()}) == 5


DIFFERENCES = [
    ([1.0, 2.0], [1.0, 3.0], "at index 1: 2.0 here and 3.0 there"),
    ([1.0, np.nan], [1.0, np.nan], ""),
    ([np.nan], [1.0], "at index 0: nan here and 1.0 there"),
    ([0.0], [-0.0], "its bits differ"),
    ([1.0], [1], "float64 and shape (1,) here, but int64"),
    ([[1.0]], [1.0], "shape (1, 1) here, but float64 and shape (1,) there"),
    ([b"a", b"b"], [b"a"], "at index 1, of 2 here and 1 there: 'b' here and none there"),
    ([], [b"a"], "at index 0, of 0 here and 1 there: none here and 'a' there"),
]


@pytest.mark.parametrize(("here", "first", "text"), DIFFERENCES)
def test_differences(here, first, text):
    terms = any(isinstance(value, bytes) for value in (*here, *first))
    arrays = [np.array(values, object) if terms else np.array(values) for values in (here, first)]
    difference = adapted_state._difference(*arrays)
    assert text in difference
    assert bool(text) == bool(difference)


class StandIn:
    def __init__(self, train_function):
        self.train_function = train_function

    def __call__(self, iterator):
        return self.train_function(iterator)


def test_traced_functions_follow_the_variables():
    layer = adapted(keras.layers.Normalization(), NUMBERS)
    model = keras.Sequential([keras.Input((2,)), layer, keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    targets = np.zeros((6, 1), "float32")

    def losses():
        stand_in = model.train_function
        model.fit(NUMBERS, targets, batch_size=6, verbose=0)
        assert model.train_function is stand_in
        return model.evaluate(NUMBERS, targets, verbose=0), float(np.mean(model.predict(NUMBERS, verbose=0) ** 2))

    model.fit(NUMBERS, targets, verbose=0)
    model.train_function = StandIn(model.train_function)
    before = losses()
    follow_variables(model)
    inner = model.train_function.train_function
    follow_variables(model)
    assert model.train_function.train_function is inner  # nothing has changed
    layer.adapt_mean.assign(layer.adapt_mean + 1)
    assert losses() == before
    follow_variables(model)
    assert model.train_function.train_function is not inner
    after = losses()
    assert after == pytest.approx([model(NUMBERS).numpy().__pow__(2).mean()] * 2, rel=1e-5)
    assert after[0] != pytest.approx(before[0])
    assert model.history.history["loss"] == pytest.approx([after[0]], rel=1e-5)


def test_what_follows_no_variable_is_left_alone():
    """`finalize_state` would forget boundaries that a file has brought."""
    bins = keras.layers.Discretization.from_config({**keras.layers.Discretization(num_bins=2).get_config(),
                                                    "bin_boundaries": [1.5]})  # fmt: skip
    bins.add_weight(shape=(1,), name="one of a subclass")
    model = keras.Sequential([bins, keras.layers.StringLookup(output_mode="tf_idf")])
    follow_variables(model)
    assert bins.bin_boundaries == [1.5]
