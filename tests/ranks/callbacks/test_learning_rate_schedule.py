"""Rates by epoch, as Horovod's callback of this name sets them."""

import sys

import keras
import numpy as np
import pytest

import tfdist
from tfdist import callbacks
from tfdist.callbacks import LearningRateScheduleCallback, LearningRateWarmupCallback

STEPS, RATE = 4, 0.2


class Rates(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.rates = []

    def on_train_batch_end(self, batch, logs=None):
        self.rates.append(float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)))


def fit(*callbacks, epochs=4, optimizer=None):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer or keras.optimizers.SGD(RATE, momentum=0.9), loss="mse")
    x = np.random.default_rng(tfdist.rank()).normal(size=(2 * STEPS, 2)).astype("float32")
    rates = Rates()
    model.fit(x, x[:, :1], batch_size=2, epochs=epochs, verbose=0, callbacks=[*callbacks, rates])
    return rates.rates


def test_a_constant_between_two_epochs(world):
    rates = fit(LearningRateScheduleCallback(RATE, 0.5, start_epoch=1, end_epoch=3))
    np.testing.assert_allclose(rates, np.repeat([1, 0.5, 0.5, 0.5], STEPS) * RATE, rtol=1e-6)


@pytest.mark.parametrize("name", ["tfdist.keras.callbacks", ""])
def test_a_number_is_told_of_under_horovods_names(world, name, monkeypatch, warnings_of_tfdist):
    monkeypatch.delitem(sys.modules, "tfdist.keras.callbacks", raising=False)
    if name:
        monkeypatch.setitem(sys.modules, name, callbacks)
    given = [LearningRateScheduleCallback(RATE, 0.5, start_epoch=2), LearningRateScheduleCallback(RATE, 1.0)]
    given += [LearningRateScheduleCallback(RATE, lambda epoch: 0.5)]
    fit(*given)
    fit(*given)
    (line,) = warnings_of_tfdist if name and tfdist.rank() == 0 else [""]
    assert not line or "multiplier=lambda epoch: 0.5 ** (epoch - 2)" in line
    assert len(warnings_of_tfdist) == bool(line)


def test_a_staircase(world):
    rates = fit(LearningRateScheduleCallback(RATE, lambda epoch: 0.5**epoch))
    np.testing.assert_allclose(rates, RATE * 0.5 ** np.repeat(np.arange(4), STEPS), rtol=1e-6)


def test_fractional_epochs(world):
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(RATE))
    rates = fit(LearningRateScheduleCallback(RATE, lambda epoch: 1 - epoch / 8, staircase=False), optimizer=optimizer)
    np.testing.assert_allclose(rates, RATE * (1 - np.arange(4 * STEPS) / STEPS / 8), rtol=1e-6)


def test_after_a_warmup(world):
    callbacks = [
        LearningRateWarmupCallback(RATE, warmup_epochs=1),
        LearningRateScheduleCallback(RATE, 1.0, start_epoch=1, end_epoch=2),
        LearningRateScheduleCallback(RATE, 0.1, start_epoch=2),
    ]
    warm = 1 / world * (1 + (world - 1) * np.arange(STEPS) / STEPS)
    expected = np.concatenate([warm, np.repeat([1, 0.1, 0.1], STEPS)]) * RATE
    np.testing.assert_allclose(fit(*callbacks), expected, rtol=1e-6)


def test_momentum_correction(world):
    """The velocity is multiplied by new / old rate, for SGD and for RMSprop, whose velocities hold the rate."""
    seen = {}

    class Watch(keras.callbacks.Callback):
        def __init__(self, slots):
            super().__init__()
            self.slots = slots

        def on_epoch_begin(self, epoch, logs=None):
            if self.model.optimizer.built and epoch == 1:
                seen.setdefault("slots", []).append(np.concatenate([s.numpy().ravel() for s in self.slots(self.model)]))

    for optimizer, slots in (
        (keras.optimizers.SGD(RATE, momentum=0.9), lambda model: model.optimizer.momentums),
        (keras.optimizers.RMSprop(RATE, momentum=0.9), lambda model: model.optimizer._momentums),
    ):
        seen.clear()
        schedule = LearningRateScheduleCallback(RATE, lambda epoch: 0.25**epoch)
        fit(Watch(slots), schedule, Watch(slots), epochs=2, optimizer=optimizer)
        before, after = seen["slots"]
        assert np.abs(before).max() > 0
        np.testing.assert_allclose(after, before * 0.25, rtol=1e-6)


def test_an_empty_interval_is_refused(world):
    with pytest.raises(tfdist.errors.ConfigError, match="end_epoch must be after start_epoch=3"):
        LearningRateScheduleCallback(RATE, 0.5, start_epoch=3, end_epoch=3)
