"""Randomness in `fit` where all ranks were given one seed: other masks on each rank, the same in each run."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.callbacks import BackupAndRestore, BroadcastGlobalVariablesCallback, DataParallel
from tfdist.elastic import TensorFlowState
from tfdist.training import random_state

ROWS, STEPS = 8, 3


class Spy(keras.layers.Layer):
    """What passes in training."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def call(self, x, training=False):
        if training:
            tf.py_function(lambda value: self.seen.append(value.numpy().tobytes()), [x], [])
        return x


class Noisy(keras.Model):
    """Draws without a seed in its own step."""

    def train_step(self, data):
        x, y = data
        return super().train_step((x + keras.random.normal(tf.shape(x)), y))


class Late(keras.layers.Layer):
    """Makes what is random when it is built, which is in the first step."""

    def build(self, shape):
        self.dropout = keras.layers.Dropout(0.5, seed=3)

    def call(self, x, training=False):
        return self.dropout(x, training=training)


KINDS = {
    "dropout": lambda: [keras.layers.Dropout(0.5)],
    "nested": lambda: [keras.Sequential([keras.layers.Dropout(0.5, seed=7)])],
    "augmentation": lambda: [keras.layers.Reshape((4, 4, 1)), keras.layers.RandomTranslation(0.5, 0.5),
                             keras.layers.RandomCrop(2, 2)],
    "global": list,
}  # fmt: skip


def new_model(kind):
    keras.utils.set_random_seed(42)
    spy = Spy()
    inputs = keras.Input((16,))
    x = inputs
    for layer in [*KINDS[kind](), spy, keras.layers.Flatten(), keras.layers.Dense(1)]:
        x = layer(x)
    model = Noisy(inputs, x) if kind == "global" else keras.Model(inputs, x)
    # The weights stay as they are, so that what is seen differs by what was drawn alone.
    model.compile(keras.optimizers.SGD(0.0), "mse")
    return model, spy


def data():
    x = np.arange(1.0, 17.0, dtype="float32")[None].repeat(ROWS * STEPS, 0)
    return tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(ROWS)


def fit(model, *callbacks, **kwargs):
    model.fit(data(), verbose=0, callbacks=list(callbacks), **kwargs)


def assert_all_differ(seen, count):
    by_rank = tfdist.allgather_object(list(seen))
    assert len({mask for of_rank in by_rank for mask in of_rank}) == count


def masks(kind, *callbacks):
    model, spy = new_model(kind)
    fit(model, *callbacks)
    return list(spy.seen)


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("kind", KINDS)
def test_ranks_differ_and_the_first_is_that_of_one_process(world, kind):
    """And a run with the same seeds and ranks is the same."""
    seen = masks(kind, DataParallel())
    assert_all_differ(seen, world * STEPS)
    assert masks(kind, DataParallel()) == seen
    if tfdist.rank() == 0:
        assert masks(kind) == seen


def test_a_second_fit_goes_on_where_the_first_was(world):
    model, spy = new_model("dropout")
    fit(model, DataParallel(), epochs=2)
    again, other = new_model("dropout")
    fit(again, DataParallel())
    fit(again, DataParallel())
    assert other.seen == spy.seen


def test_a_layer_that_is_made_in_the_first_step(world):
    keras.utils.set_random_seed(42)
    spy = Spy()
    model = keras.Sequential([Late(), spy, keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    fit(model, DataParallel())
    assert_all_differ(spy.seen, world * STEPS)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("backup_first", [False, True])
@pytest.mark.parametrize("kind", ["dropout", "global"])
def test_a_backup_keeps_it(world, shared_tmp_path, kind, backup_first):
    """To the bit, and what was folded is not folded once more."""
    whole, spy = new_model(kind)
    fit(whole, DataParallel(), epochs=2)
    callbacks = [DataParallel(), BackupAndRestore(shared_tmp_path, delete_checkpoint=False)]
    fit(new_model(kind)[0], *callbacks)
    resumed, other = new_model(kind)
    callbacks = [DataParallel(), BackupAndRestore(shared_tmp_path)]
    fit(resumed, *(reversed(callbacks) if backup_first else callbacks), epochs=2)
    assert other.seen == spy.seen[STEPS:]


@pytest.mark.ranks(2)
def test_a_backup_of_another_number_of_ranks(world, shared_tmp_path, monkeypatch):
    """The states of ranks that are no more are lost, and what they drew is not drawn again."""
    monkeypatch.setattr(BackupAndRestore, "_local_state", lambda *_: {})
    first, spy = new_model("dropout")
    fit(first, DataParallel(), BackupAndRestore(shared_tmp_path, delete_checkpoint=False))
    resumed, other = new_model("dropout")
    fit(resumed, DataParallel(), BackupAndRestore(shared_tmp_path), epochs=2)
    assert_all_differ(spy.seen + other.seen, world * 2 * STEPS)


def test_the_explicit_callbacks_leave_seeds_alone(world):
    seen = masks("dropout", BroadcastGlobalVariablesCallback(0))
    assert tfdist.allgather_object(seen) == [seen] * world


def test_a_state_of_variables_leaves_each_rank_its_own(world, warnings_of_tfdist):
    """Also one that was made of `model.variables`, which broadcast_variables warns of."""
    model, _ = new_model("dropout")
    random_state.fold(model)
    state = TensorFlowState(model.variables)
    state.sync()
    (generator,) = [v.numpy() for v in model.variables if v.name == "seed_generator_state"]
    assert len({array.tobytes() for array in tfdist.allgather_object(generator)}) == world
    assert not warnings_of_tfdist
    for _ in range(2):
        tfdist.broadcast_variables(model.variables, root_rank=0)
    assert ["states of seed generators" in line for line in warnings_of_tfdist] == [True] * (tfdist.rank() == 0)
