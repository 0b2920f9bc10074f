"""`check_equal`: what differs is named on every rank, what may differ is left alone, and it costs one collective."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.errors import ConfigError, MismatchError
from tfdist.training import equality
from tfdist.world import process_sets


def new_model(*more):
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(6, name="first"), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)]
    return keras.Sequential(
        [keras.Input((4,)), *layers, *(make() for make in more), keras.layers.Dense(2, name="last")]
    )


def calls():
    return sum(cost["calls"] for cost in tfdist.metrics()["collectives"].values())


@contextlib.contextmanager
def refused(world, *texts, error=MismatchError):
    """The same error on every rank, with these texts in it."""
    with pytest.raises(error) as caught:
        yield
    message = str(caught.value)
    assert all(text in message for text in texts), message
    assert tfdist.allgather_object(message, name="messages") == [message] * world


def variable(value, **kwargs):
    return tf.Variable(value, name="mine", **kwargs)


@pytest.mark.ranks(1, 2, 3)
def test_equal_targets_take_one_collective(world):
    model = new_model(lambda: keras.layers.Dense(3, trainable=False))
    model.compile(keras.optimizers.Adam(), loss="mse")
    model.optimizer.build(model.trainable_variables)
    layer = keras.layers.Normalization()
    layer.adapt(np.arange(12.0).reshape(3, 4))
    targets = [
        model,
        layer,
        model.optimizer,
        model.weights,
        tuple(model.weights[:1]),
        variable([1, 2]),
        variable(np.nan),
    ]
    targets += [variable(tf.zeros([0, 3])), variable([True]), variable(tf.ones([3], tf.bfloat16)), variable(1j)]
    for target in targets:
        before = calls()
        tfdist.check_equal(target)
        assert calls() - before == (world > 1)


def test_what_differs_is_named(world):
    model = new_model()
    last = tfdist.rank() == world - 1
    model.get_layer("first").kernel.assign_add(np.full((4, 6), 0.1 * last))
    model.get_layer("last").bias.assign([0.0, float(last)])
    with refused(world, "my check", "first/kernel, float32 (4, 6)", f"rank {world - 1} 0.", "last/bias", "zeros"):
        tfdist.check_equal(model, name="my check")
    # A permutation has the same norm, sum and elements.
    order = [[1.0, 2.0], [2.0, 1.0]][last]
    with refused(world, f"rank {world - 1} 0.63"):
        tfdist.check_equal(variable(order))


def test_what_may_differ_is_left_alone(world):
    """Moving statistics and seeds of a model; of a layer all that is its."""
    model = new_model()
    statistics = model.layers[1].moving_mean
    statistics.assign(np.full(6, float(tfdist.rank())))
    tfdist.check_equal(model)
    with refused(world, "moving_mean"):
        tfdist.check_equal(model.layers[1])
    frozen = new_model(lambda: keras.layers.Dense(3, trainable=False, name="frozen"))
    frozen.get_layer("frozen").bias.assign([float(tfdist.rank()), 0, 1])
    with refused(world, "frozen/bias"):
        tfdist.check_equal(frozen)
    partial = new_model(lambda: keras.layers.Dense(3 + tfdist.rank()))
    partial.compile(
        tfdist.PartialDistributedOptimizer(keras.optimizers.SGD(momentum=0.5), local_layers=partial.layers[-2:])
    )
    partial.optimizer.build(partial.trainable_variables)
    tfdist.check_equal(partial)
    tfdist.check_equal(partial.optimizer)


def test_adapted_layers(world):
    """As used in `dataset.map`, or in a model: adapted to each rank's part, they differ."""
    layer = keras.layers.Normalization(name="adapted")
    layer.adapt(np.random.default_rng(tfdist.rank()).normal(size=(20, 4)).astype("float32"))
    model = keras.Sequential([keras.Input((4,)), layer, keras.layers.Dense(1, kernel_initializer="ones")])
    for target in (layer, model):
        with refused(world, "the mean of the layer 'adapted'", "before tfdist.shard"):
            tfdist.check_equal(target)


@pytest.mark.parametrize("kind", ["lookup", "text", "boundaries"])
def test_layers_without_variables(world, kind):
    """What each rank's part of the data has taught a layer, alone and in a model."""
    words = np.array([f"word{number}" for number in range(3 + tfdist.rank())])
    layer, what = {
        "lookup": lambda: (keras.layers.StringLookup(name="adapted", vocabulary=words), "vocabulary"),
        "text": lambda: (keras.layers.TextVectorization(name="adapted"), "vocabulary"),
        "boundaries": lambda: (keras.layers.Discretization(num_bins=3, name="adapted"), "boundaries"),
    }[kind]()
    if kind == "text":
        layer.adapt(words)
    if kind == "boundaries":
        layer.adapt(np.arange(20.0) * (1 + tfdist.rank()))
    with refused(world, "adapted", what, "tfdist.shard"):
        tfdist.check_equal(layer)
    equal = keras.layers.StringLookup(vocabulary=["a", "b"])
    before = calls()
    tfdist.check_equal(equal)
    assert calls() - before == 1


def test_lists_that_differ(world):
    rank = tfdist.rank()
    for mine, texts in [
        (
            new_model().weights[: 3 - min(rank, 1)],
            ["rank 0 has 3, rank 1 has 2", "gamma float32 (6,) on rank 0", "nothing"],
        ),
        (variable(tf.ones([3 + (rank == 1)])), ["float32 (3,) on rank 0", "float32 (4,) on rank 1"]),
        (variable(tf.ones([3], tf.float64 if rank == 1 else tf.int64)), ["int64 (3,)", "float64 (3,)"]),
    ]:
        with refused(world, "different variables", *texts):
            tfdist.check_equal(mine)
    for wrong, text in [
        (keras.layers.Dense(1), "no variables"),
        ("text", "'text'"),
        ([tf.constant(1)], "tf.Tensor"),
        ([], "no"),
    ]:
        with refused(world, "rank 1: ", text, error=ConfigError):
            tfdist.check_equal(wrong if rank == 1 else new_model())

    with refused(world, "rank 0: mine has dtype string", error=ConfigError):
        tfdist.check_equal(variable(["text"]))
    with pytest.raises(ConfigError, match=r"tf\.function"):
        tf.function(lambda: tfdist.check_equal(new_model()), autograph=False)()


NAN = np.array([0x7FC00000, 0x7FC00001, 0xFFC00000], np.uint32).view(np.float32)
# Content by rank, and what is found: drift, rounding, or nothing.
CONTENTS = {
    "number": (lambda r: [1.0, float(r)], "drift"),
    "small": (lambda r: np.full(3000, 1 + 1e-6 * r, "float32"), "rounding"),
    "just_below": (lambda r: np.full(9, 1 + 0.0009 * (r == 1)), "rounding"),
    "just_above": (lambda r: np.full(9, 1 + 0.0011 * (r == 1)), "drift"),
    "half": (lambda r: np.full(9, 1 + 0.25 * (r == 1), "float16"), "drift"),
    "nan_on_one": (lambda r: [1.0, np.nan if r == 1 else 1.0], "drift"),
    "nan_on_first": (lambda r: [1.0, np.nan if r == 0 else 1.0], "drift"),
    "infinity": (lambda r: [1.0, np.inf if r == 1 else -np.inf], "drift"),
    "nan_bits": (lambda r: NAN[r : r + 1], "rounding"),
    "signed_zero": (lambda r: [-0.0 if r == 1 else 0.0], "rounding"),
    "whole": (lambda r: [10**6 + r], "drift"),
    "flag": (lambda r: [True, r == 1], "drift"),
    "same_nan": (lambda r: [np.nan, 1.0], "nothing"),
}


@pytest.mark.parametrize("piece", [16, 1 << 24])
def test_contents(world, piece, warnings_of_tfdist, monkeypatch):
    """Also in pieces: as large values are compared."""
    monkeypatch.setattr(equality, "PIECE_BYTES", piece)
    for case, (content, expected) in CONTENTS.items():
        warnings_of_tfdist.clear()
        mine = variable(content(tfdist.rank()))
        with refused(world, "mine") if expected == "drift" else contextlib.nullcontext():
            tfdist.check_equal(mine)
        warned = [line for line in warnings_of_tfdist if "last digits" in line and "The ranks run on: " in line]
        assert len(warned) == (expected == "rounding" and tfdist.rank() == 0), case


@pytest.mark.ranks(3)
def test_process_set(world):
    process_sets.start("dynamic", None)
    pair = tfdist.add_process_set([1, 2])
    rank = tfdist.rank()
    if rank:
        tfdist.check_equal(variable([1.0]), process_set=pair)
        with pytest.raises(MismatchError, match=r"norm on rank 1.*\n.*mine.*rank 2 1"):
            tfdist.check_equal(variable([float(rank)]), process_set=pair)
    tfdist.remove_process_set(pair)
    process_sets.start(None, None)
