"""What is told of a `fit` or an `evaluate` on the part of each rank that takes nothing from the other ranks."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.callbacks import BroadcastGlobalVariablesCallback, DataParallel


def data():
    x = np.random.default_rng(3).normal(size=(48, 2)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(4)


def new_model():
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", loss="mse")
    return model


def assert_told(lines, part, world):
    assert len([line for line in lines if part in line]) == (1 if world > 1 and tfdist.rank() == 0 else 0)


@pytest.mark.ranks(1, 2, 3)
def test_a_later_fit_of_a_model_compiled_again(world, warnings_of_tfdist):
    """As where layers are no longer frozen, and the callback is forgotten."""
    model = new_model()
    model.fit(tfdist.shard(data()), verbose=0, callbacks=[DataParallel()])
    model.fit(tfdist.shard(data()), verbose=0)
    assert_told(warnings_of_tfdist, "nothing reduces the gradients", 1)  # its optimizer still does
    model.compile("sgd", loss="mse")
    model.fit(tfdist.shard(data()), epochs=2, verbose=0)
    assert_told(warnings_of_tfdist, "nothing reduces the gradients", world)


class OwnStep(keras.Model):
    """A step of its own, by the compiled optimizer, or by a tape of tfdist."""

    def __init__(self, tape):
        super().__init__()
        self.dense, self.tape = keras.layers.Dense(1), tape

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with self.tape() as tape:
            loss = tf.reduce_mean(tf.square(self(x) - y))
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


@pytest.mark.parametrize("is_eager", [False, True])
@pytest.mark.parametrize("by_tape", [False, True])
def test_a_later_fit_of_a_step_of_its_own(world, by_tape, is_eager, warnings_of_tfdist):
    """A tape of tfdist needs no callback, however often the model is compiled."""
    model = OwnStep(lambda: tfdist.DistributedGradientTape(tf.GradientTape()) if by_tape else tf.GradientTape())
    for callbacks in ([BroadcastGlobalVariablesCallback(0)] if by_tape else [DataParallel()], []):
        model.compile("sgd", run_eagerly=is_eager)
        model.fit(tfdist.shard(data()), epochs=2, verbose=0, callbacks=callbacks)
    model.fit(tfdist.shard(data()), verbose=0)
    assert_told(warnings_of_tfdist, "nothing reduces the gradients", 1 if by_tape else world)


def test_a_step_that_was_traced_before_any_data_was_sharded(world, warnings_of_tfdist):
    model = OwnStep(lambda: tfdist.DistributedGradientTape(tf.GradientTape()))
    model.compile("sgd")
    model.fit(data().shard(world, tfdist.rank()), verbose=0, callbacks=[BroadcastGlobalVariablesCallback(0)])
    model.fit(tfdist.shard(data()), verbose=0)
    assert_told(warnings_of_tfdist, "nothing reduces the gradients", 1)


def test_a_later_fit_that_is_meant_for_one_rank(world, warnings_of_tfdist):
    new_model().fit(tfdist.shard(data()), verbose=0, callbacks=[DataParallel()])
    if tfdist.rank() == 0:
        new_model().fit(data(), verbose=0)
    assert_told(warnings_of_tfdist, "nothing reduces the gradients", 1)


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("arrays", [False, True], ids=["dataset", "arrays"])
def test_an_evaluation_of_each_rank_by_itself(world, arrays, warnings_of_tfdist):
    whole = tuple(np.concatenate(part) for part in zip(*data().as_numpy_iterator(), strict=True)) if arrays else data()
    model, part = new_model(), tfdist.shard(whole, remainder="join")
    given = part if arrays else (part,)
    model.fit(*given, validation_data=part, epochs=2, verbose=0, callbacks=[DataParallel()])
    all_ranks = model.evaluate(*given, verbose=0, callbacks=[DataParallel()])
    model.evaluate(data(), verbose=0)
    assert_told(warnings_of_tfdist, "covers the samples of each rank by itself", 1)
    for _ in range(2):
        own = model.evaluate(*given, verbose=0)
    assert_told(warnings_of_tfdist, "covers the samples of each rank by itself", world)
    assert all_ranks == pytest.approx(model.evaluate(data(), verbose=0), rel=1e-5)
    assert world == 1 or own != pytest.approx(all_ranks, rel=1e-3)


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("rows", [48, 44])
@pytest.mark.parametrize("kind", ["dataset", "unknown", "arrays", "global"])
def test_a_validation_that_leaves_out_samples(world, rows, kind, warnings_of_tfdist):
    """44 is no number of full rounds of batches, nor of rows, for 3 ranks; for 2 it is one of rows."""
    x = np.ones((rows, 2), "float32")
    samples = tf.data.Dataset.from_tensor_slices((x, x[:, :1]))
    parts = {
        "dataset": lambda: tfdist.shard(samples.batch(4)),
        "unknown": lambda: tfdist.shard(samples.filter(lambda x, y: True).batch(4)),
        "arrays": lambda: tfdist.shard((x, x[:, :1])),
        "global": lambda: tfdist.shard(samples, global_batch=12),
    }
    new_model().fit(tfdist.shard(data()), validation_data=parts[kind](), verbose=0, callbacks=[DataParallel()])
    is_whole = {
        "dataset": rows // 4 % world == 0,
        "unknown": False,
        "arrays": rows % world == 0,
        "global": rows % 12 == 0,
    }
    told = not is_whole[kind]
    assert_told(warnings_of_tfdist, "the metrics of validation leave out samples", world if told else 1)
