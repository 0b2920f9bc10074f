"""The warm-up has the rates of its formula at every step, and momentum correction is exact."""

import keras
import numpy as np
import pytest

import tfdist
from tfdist.callbacks import BroadcastGlobalVariablesCallback, DataParallel, LearningRateWarmupCallback

FEATURES, BATCH, STEPS, EPOCHS, WARMUP = 3, 4, 6, 3, 2
RATE = 0.2


def new_model(optimizer, **kwargs):
    keras.utils.set_random_seed(11)
    model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(1, use_bias=False)])
    model.compile(optimizer, loss="mse", **kwargs)
    return model


def data(rank):
    generator = np.random.default_rng(rank)
    x = generator.normal(size=(BATCH * STEPS, FEATURES)).astype("float32")
    return x, (x @ np.array([[1.0], [-2.0], [0.5]]) + rank).astype("float32")


class Rates(keras.callbacks.Callback):
    """The rate in force at each step."""

    def __init__(self):
        super().__init__()
        self.rates = []

    def on_train_batch_end(self, batch, logs=None):
        self.rates.append(float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)))


def fit(model, *callbacks, **kwargs):
    rates = Rates()
    model.fit(
        *data(tfdist.rank()),
        **{"batch_size": BATCH, "epochs": EPOCHS, "shuffle": False, "verbose": 0, **kwargs},
        callbacks=[*callbacks, rates],
    )
    return rates.rates


def formula(world, scaled=RATE, every=1):
    steps = np.arange(0, EPOCHS * STEPS, every)
    total = WARMUP * STEPS
    return np.where(steps < total, scaled / world * (1 + (world - 1) * steps / total), scaled)


@pytest.mark.ranks(1, 2, 3, 4)
def test_rates_equal_the_formula(world):
    rates = fit(new_model(keras.optimizers.SGD(RATE)), LearningRateWarmupCallback(RATE, WARMUP))
    np.testing.assert_allclose(rates, formula(world), rtol=1e-6)
    assert rates[0] == np.float32(RATE / world)
    assert rates[-1] == np.float32(RATE)


def test_end_is_printed_on_a_line_of_its_own(capfd):
    """A progress bar stands on the line before."""
    fit(new_model(keras.optimizers.SGD(RATE)), LearningRateWarmupCallback(RATE, 0.5, verbose=1), epochs=1, verbose=1)
    lines = capfd.readouterr().out.splitlines()
    assert lines.count("Warm-up ended: the learning rate is 0.2.") == (tfdist.rank() == 0)


def test_rates_with_several_steps_an_execution(world):
    rates = fit(new_model(keras.optimizers.SGD(RATE), steps_per_execution=3), LearningRateWarmupCallback(RATE, WARMUP))
    np.testing.assert_allclose(rates, formula(world, every=3), rtol=1e-6)


@pytest.mark.ranks(1, 2, 3, 4)
@pytest.mark.parametrize("scaled_loss", [False, True])
def test_rates_of_data_parallel(world, scaled_loss):
    optimizer = keras.optimizers.SGD(RATE)
    if scaled_loss:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    rates = fit(new_model(optimizer), DataParallel(warmup_epochs=WARMUP))
    np.testing.assert_allclose(rates, formula(world, RATE * world), rtol=1e-6)


def test_rates_of_a_schedule(world):
    """The factor in front of the schedule warms up."""

    def make():
        return keras.optimizers.schedules.PiecewiseConstantDecay([STEPS // 2], [RATE, RATE / 2])

    model = new_model(keras.optimizers.SGD(make()))
    plain = make()
    seen = []

    class Seen(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            step = int(self.model.optimizer.iterations)
            seen.append(float(self.model.optimizer.learning_rate) / float(plain(step)))

    fit(model, DataParallel(warmup_epochs=WARMUP), Seen())
    np.testing.assert_allclose(seen, formula(world, world), rtol=1e-5)


def test_rates_continue_where_training_is_resumed(world):
    rates = fit(new_model(keras.optimizers.SGD(RATE)), LearningRateWarmupCallback(RATE, WARMUP), initial_epoch=1)
    np.testing.assert_allclose(rates, formula(world)[STEPS:], rtol=1e-6)


def test_the_rate_is_left_alone_after_the_warmup(world):
    class Halve(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == WARMUP - 1:
                self.model.optimizer.learning_rate = RATE / 2

    rates = fit(new_model(keras.optimizers.SGD(RATE)), LearningRateWarmupCallback(RATE, WARMUP), Halve())
    np.testing.assert_allclose(rates[WARMUP * STEPS :], RATE / 2, rtol=1e-6)


def velocity_reference(world, nesterov, momentum):
    """Goyal et al. 2017: u = m*u + g; w -= lr*u, in which a change of the rate needs no correction."""
    weights = new_model(keras.optimizers.SGD(RATE)).get_weights()[0].astype("float64")
    velocity = np.zeros_like(weights)
    for step, rate in enumerate(formula(world)):
        gradient = np.zeros_like(weights)
        at = slice(step % STEPS * BATCH, (step % STEPS + 1) * BATCH)
        for rank in range(world):
            x, y = (part[at].astype("float64") for part in data(rank))
            gradient += 2 * x.T @ (x @ weights - y) / BATCH / world
        velocity = momentum * velocity + gradient
        weights = weights - rate * (momentum * velocity + gradient if nesterov else velocity)
    return weights


@pytest.mark.parametrize("scaled_loss", [False, True])
@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_correction(world, nesterov, scaled_loss):
    def train(momentum_correction):
        optimizer = keras.optimizers.SGD(RATE, momentum=0.5, nesterov=nesterov)
        if scaled_loss:
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=4.0)
        model = new_model(tfdist.DistributedOptimizer(optimizer))
        warmup = LearningRateWarmupCallback(RATE, WARMUP, momentum_correction=momentum_correction)
        fit(model, BroadcastGlobalVariablesCallback(0), warmup)
        return model.get_weights()[0]

    expected = velocity_reference(world, nesterov, 0.5)
    corrected, uncorrected = (np.abs(train(correction) - expected).max() for correction in (True, False))
    assert corrected < 1e-5
    assert uncorrected > 1e-4  # the test can tell the difference


def test_unknown_length(world):
    def batches():
        while True:
            yield data(tfdist.rank())[0][:BATCH], data(tfdist.rank())[1][:BATCH]

    import tensorflow as tf

    signature = (tf.TensorSpec((BATCH, FEATURES)), tf.TensorSpec((BATCH, 1)))
    endless = tf.data.Dataset.from_generator(batches, output_signature=signature).take(STEPS)
    model = new_model(keras.optimizers.SGD(RATE))
    with pytest.raises(tfdist.errors.ConfigError, match="Pass steps_per_epoch"):
        model.fit(endless, verbose=0, callbacks=[LearningRateWarmupCallback(RATE, 1)])
    rates = Rates()
    model.fit(endless, verbose=0, callbacks=[LearningRateWarmupCallback(RATE, 1, steps_per_epoch=STEPS), rates])
    np.testing.assert_allclose(rates.rates, RATE / world * (1 + (world - 1) * np.arange(STEPS) / STEPS), rtol=1e-6)


def test_schedules_are_refused(world):
    model = new_model(keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(RATE, 10, 0.9)))
    with pytest.raises(tfdist.errors.ConfigError, match="schedule"):
        fit(model, LearningRateWarmupCallback(RATE, WARMUP))


def test_a_training_past_its_warmup_keeps_its_rate(world):
    """As when it resumes: the rate comes from what is resumed."""
    model = new_model(keras.optimizers.SGD(0.03))
    rates = fit(model, LearningRateWarmupCallback(RATE, warmup_epochs=1), initial_epoch=2)
    np.testing.assert_allclose(rates, [0.03] * STEPS, rtol=1e-6)


@pytest.mark.ranks(1, 2, 3)
def test_base_is_the_rate_of_rank_zero(world):
    """As the weights, which it may have loaded from a file alone."""
    mine = RATE / (tfdist.rank() + 1)
    rates = fit(new_model(keras.optimizers.SGD(mine)), DataParallel(warmup_epochs=WARMUP))
    np.testing.assert_allclose(rates, formula(world, RATE * world), rtol=1e-6)
