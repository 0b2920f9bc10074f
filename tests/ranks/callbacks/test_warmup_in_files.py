"""A file that is written during a warm-up has the rate of one process, so a training that resumes from it warms up to
the same rate as one that was not interrupted.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from interruption import Interrupted, StopAt

import tfdist
from tfdist.callbacks import BackupAndRestore, DataParallel, ModelCheckpoint
from tfdist.input import mark
from tfdist.testing import assert_identical_on_ranks

FEATURES, BATCH, STEPS, EPOCHS, WARMUP = 3, 4, 5, 4, 3
RATE = 0.02


def momentum():
    return keras.optimizers.SGD(RATE, momentum=0.9)


OPTIMIZERS = {
    "momentum": momentum,
    "adam": lambda: keras.optimizers.Adam(RATE),
    "loss_scale": lambda: keras.optimizers.LossScaleOptimizer(momentum(), initial_scale=8.0),
    "schedule": lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(RATE, 3, 0.9), momentum=0.9),
}


class Rates(keras.callbacks.Callback):
    """The rate in force at each step."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)))


def new_model(optimizer="momentum", **setting):
    keras.utils.set_random_seed(11)
    model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(1)])
    model.compile(OPTIMIZERS[optimizer](), "mse", **setting)
    return model


def samples(count):
    generator = np.random.default_rng(3)
    x = generator.normal(size=(count, FEATURES)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, np.sin(x[:, :1])))


def sharded(world, global_batch):
    data = samples(STEPS * BATCH * world)
    if global_batch:
        return tfdist.shard(data, global_batch=BATCH * world)
    return tfdist.shard(data.batch(BATCH))


def fit(model, data, *callbacks, **given):
    rates = Rates()
    given = {"epochs": EPOCHS, "verbose": 0, **given}
    model.fit(data, callbacks=[DataParallel(warmup_epochs=WARMUP), *callbacks, rates], **given)
    return rates.seen


def assert_close(model, other):
    for array, expected in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-7)


def assert_resumes(world, save_and_load, data, optimizer="momentum", **setting):
    """Compares a training that was interrupted after its first epoch with one that was not, step by step."""
    whole = new_model(optimizer, **setting)
    expected = fit(whole, data)
    resumed = save_and_load(new_model(optimizer, **setting))
    taken = fit(resumed, data, initial_epoch=1)
    np.testing.assert_allclose(taken, expected[-len(taken) :], rtol=1e-6)
    assert_close(resumed, whole)
    assert_identical_on_ranks(resumed.get_weights())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("global_batch", [False, True])
def test_file_of_keras(world, shared_tmp_path, optimizer, global_batch):
    path, data = shared_tmp_path / "model.keras", sharded(world, global_batch)

    def save_and_load(model):
        fit(model, data, ModelCheckpoint(str(path)), epochs=1)
        loaded = keras.models.load_model(path)
        if optimizer != "schedule":
            np.testing.assert_allclose(float(loaded.optimizer.learning_rate), RATE, rtol=1e-6)
        return loaded

    assert_resumes(world, save_and_load, data, optimizer)


@pytest.mark.parametrize("global_batch", [False, True])
def test_checkpoint_of_tensorflow(world, shared_tmp_path, global_batch):
    data = sharded(world, global_batch)

    def save_and_load(model):
        fit(model, data, epochs=1)
        prefix = str(shared_tmp_path / f"rank-{tfdist.rank()}")
        path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(prefix)
        loaded = new_model()
        tf.train.Checkpoint(model=loaded, optimizer=loaded.optimizer).read(path).expect_partial()
        return loaded

    assert_resumes(world, save_and_load, data)


@pytest.mark.ranks(2)
def test_several_steps_an_execution(world, shared_tmp_path):
    """Five steps are executions of four and one."""
    path, data = shared_tmp_path / "model.keras", sharded(world, global_batch=False)

    def save_and_load(model):
        fit(model, data, ModelCheckpoint(str(path)), epochs=1)
        return keras.models.load_model(path)

    assert_resumes(world, save_and_load, data, steps_per_execution=4)


@pytest.mark.parametrize("optimizer", ["momentum", "schedule"])
def test_same_model_in_two_fits(world, optimizer):
    data = sharded(world, global_batch=False)

    def interrupted(model):
        fit(model, data, epochs=1)
        return model

    assert_resumes(world, interrupted, data, optimizer)


@pytest.mark.parametrize("optimizer", ["momentum", "schedule"])
@pytest.mark.parametrize("global_batch", [False, True])
def test_elastic_commit(world, optimizer, global_batch):
    """As after a loss: the commit is taken over, the callback goes on, and Keras begins the rest of the epoch."""
    data = sharded(world, global_batch)

    def take_over(batch, logs):
        if int(model.optimizer.iterations) == STEPS + 2:
            state = tfdist.elastic.KerasState(model)
            state.restore()
            plugin.resume()
            plugin.on_epoch_begin(1)

    whole, model = new_model(optimizer), new_model(optimizer)
    expected = fit(whole, data)
    plugin, rates = DataParallel(warmup_epochs=WARMUP), Rates()
    goes_on = keras.callbacks.LambdaCallback(on_train_batch_end=take_over)
    model.fit(data, epochs=EPOCHS, verbose=0, callbacks=[plugin, rates, goes_on])
    np.testing.assert_allclose(rates.seen, expected, rtol=1e-6)
    assert_close(model, whole)


@pytest.mark.parametrize("optimizer", ["momentum", "schedule"])
def test_rank_zero_has_fewer_batches(world, shared_tmp_path, optimizer):
    """It writes the file, with the state of the rank that went on longest."""
    path = shared_tmp_path / "model.keras"
    dealt = samples((STEPS * world - 1) * BATCH).batch(BATCH).shard(world, world - 1 - tfdist.rank())
    data = mark.put(dealt, "join")
    longest = world - 1

    def save_and_load(model):
        fit(model, data, ModelCheckpoint(str(path)), epochs=1)
        assert_identical_on_ranks([np.asarray(variable) for variable in model.optimizer.variables])
        return keras.models.load_model(path)

    whole = new_model(optimizer)
    expected = tfdist.broadcast_object(fit(whole, data), longest)
    resumed = save_and_load(new_model(optimizer))
    taken = tfdist.broadcast_object(fit(resumed, data, initial_epoch=1), longest)
    np.testing.assert_allclose(taken, expected[STEPS:], rtol=1e-6)
    assert_identical_on_ranks([np.asarray(variable) for variable in resumed.optimizer.variables])
    assert_close(resumed, whole)


@pytest.mark.parametrize("optimizer", ["momentum", "loss_scale"])
def test_rate_that_is_set_where_the_warmup_ends(world, shared_tmp_path, optimizer):
    """It holds in the epochs after, also if the training is interrupted there."""
    data, backup = sharded(world, global_batch=False), BackupAndRestore(shared_tmp_path)
    model = new_model(optimizer)

    def halve(epoch, logs):
        if epoch == WARMUP - 1:
            model.optimizer.learning_rate = RATE * world / 2

    with pytest.raises(Interrupted):
        fit(model, data, keras.callbacks.LambdaCallback(on_epoch_end=halve), backup, StopAt(WARMUP, 1))
    taken = fit(new_model(optimizer), data, backup)
    np.testing.assert_allclose(taken, [RATE * world / 2] * STEPS, rtol=1e-6)
