"""Preprocessing layers that have learned something else on each rank: found, wherever the layer is used."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.elastic import KerasState
from tfdist.training import adapted_state


def words(rank):
    return np.array([f"only {rank}", "of all ranks"])


def adapted(layer, data):
    layer.adapt(data)
    return layer


class Spread(keras.layers.Layer):
    """A layer of a user's own."""

    def adapt(self, data):
        self.spread = float(np.ptp(data))


def idf(rank):
    layer = keras.layers.StringLookup(name="layer", output_mode="tf_idf")
    layer.set_vocabulary(["a", "b"], idf_weights=[1.0, 2.0 + rank])
    return layer


# What a layer is on a rank, and what is said of it; with the same argument on every rank it is the same.
LAYERS = {
    "string": (lambda rank: adapted(keras.layers.StringLookup(name="layer"), ["x", f"rank {rank}"]), "vocabulary"),
    "integer": (lambda rank: adapted(keras.layers.IntegerLookup(name="layer"), [1, 1, 7 + rank]), "vocabulary"),
    "text": (lambda rank: adapted(keras.layers.TextVectorization(name="layer"), words(rank)), "vocabulary"),
    "list": (lambda rank: keras.layers.StringLookup(vocabulary=["a"] + ["b"] * bool(rank), name="layer"), "vocabulary"),
    "idf": (idf, "TF-IDF weights"),
    "bins": (lambda rank: adapted(keras.layers.Discretization(num_bins=3, name="layer"), np.arange(9.0) + rank),
             "boundaries"),
    "adapted": (lambda rank: adapted(keras.layers.Normalization(name="layer"), np.arange(6.0).reshape(3, 2) + rank),
                "mean"),
    "given": (lambda rank: keras.layers.Normalization(mean=1.0, variance=2.0 + rank, name="layer"), "variance"),
    "own": (lambda rank: adapted(Spread(name="layer"), [0.0, 1.0 + rank]), "spread"),
}  # fmt: skip


@pytest.mark.parametrize("kind", LAYERS)
def test_every_kind(world, kind):
    """Found where only the last rank differs too; equal layers are no error."""
    make, what = LAYERS[kind]
    adapted_state.require_equal(make(0))
    adapted_state.require_equal(keras.Sequential([make(0), keras.layers.Dense(1)]))
    layer = make(int(tfdist.rank() == world - 1))
    text = rf"the {what} of the layer 'layer' on rank {world - 1} differs from that of rank 0: .* here.*tfdist\.shard"
    with pytest.raises(tfdist.errors.MismatchError, match=text):
        adapted_state.require_equal(layer)
    adapted_state.require_equal(make(0))  # the ranks are in step


def test_the_message_says_how_to_take_it_from_rank_0(world):
    layer = LAYERS["text"][0](tfdist.rank())
    with pytest.raises(tfdist.errors.MismatchError) as caught:
        adapted_state.require_equal(layer)
    messages = tfdist.allgather_object(str(caught.value))
    assert set(messages) == {messages[0]}
    assert ": '1' here and '0' there" in messages[0]
    exec(re.search(r"write (layer\..*)\.$", messages[0]).group(1), {"layer": layer, "tfdist": tfdist})
    adapted_state.require_equal(layer)
    assert layer.get_vocabulary()[-1] == "0"


def test_other_layers_on_a_rank(world):
    layers = [keras.layers.StringLookup(vocabulary=["a"], name="a")]
    if tfdist.rank() == world - 1:
        layers.append(keras.layers.Discretization([1.0], name="b"))
    text = rf"vocabulary of 'a' on rank 0, vocabulary of 'a', boundaries of 'b' on rank {world - 1}\."
    with pytest.raises(tfdist.errors.MismatchError, match=text):
        adapted_state.require_equal(keras.Sequential(layers))


def test_a_layer_that_only_the_pipeline_uses(world):
    """No model knows of it."""
    lookup = LAYERS["string"][0](tfdist.rank())
    dataset = tf.data.Dataset.from_tensor_slices(["x", "rank 0"]).map(lookup)
    expected = [1, 2] if tfdist.rank() == 0 else [1, 0]
    assert sorted(int(number) for number in dataset) == sorted(expected)
    with pytest.raises(tfdist.errors.MismatchError, match="vocabulary of the layer 'layer'"):
        adapted_state.require_equal(lookup)


def test_constants_that_lag_behind_their_variables_are_found(world):
    layer = LAYERS["adapted"][0](tfdist.rank())
    tfdist.broadcast_variables(layer.weights, root_rank=0)
    with pytest.raises(tfdist.errors.MismatchError, match="mean of the layer 'layer'"):
        adapted_state.require_equal(layer)
    layer.finalize_state()
    adapted_state.require_equal(layer)


def test_elastic_states_are_followed(world):
    layer = LAYERS["adapted"][0](tfdist.rank())
    model = keras.Sequential([keras.Input((2,)), layer, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    state = KerasState(model)
    mean = np.array([[2.0, 3.0]], np.float32)
    state.sync()
    np.testing.assert_array_equal(layer.mean, mean)
    layer.adapt_mean.assign([7.0, 7.0])
    state.restore()
    np.testing.assert_array_equal(layer.mean, mean)
    content = {**state._kept_content(), "variables": [array + 1 for array in state._kept_variables]}
    state._adopt(content)
    state.restore()
    np.testing.assert_array_equal(layer.mean, mean + 1)
