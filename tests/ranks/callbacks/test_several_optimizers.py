"""A model with a `train_step` and optimizers of its own: attributes, in lists and dicts, of models in it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.callbacks import (
    BackupAndRestore,
    BroadcastGlobalVariablesCallback,
    DataParallel,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    Metrics,
)
from tfdist.errors import ConfigError
from tfdist.native import keras_version
from tfdist.testing.parity import assert_close, assert_identical_on_ranks
from tfdist.training import model_optimizer, model_state

FEATURES, BATCH, STEPS = 4, 4, 6
RATE = 0.02


class Adversaries(keras.Model):
    """Two networks with a loss and an optimizer each. `place` says where the optimizers are."""

    def __init__(self, place="attribute", optimizers=None):
        super().__init__()
        self.generator = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(FEATURES, activation="tanh")])
        self.critic = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(1)])
        self._place = place
        self.compile(*(optimizers or (keras.optimizers.SGD(RATE, momentum=0.9), keras.optimizers.Adam(RATE))))

    def compile(self, critic, generator, **kwargs):
        super().compile(**kwargs)  # leaves an optimizer that is not used
        if self._place == "attribute":
            self.critic_optimizer, self.generator_optimizer = critic, generator
        elif self._place == "list and dict":
            self.optimizers = [critic, {"generator": generator}]
        else:
            self.critic.compile(critic)
            self.generator.compile(generator)

    def pair(self):
        if self._place == "attribute":
            return self.critic_optimizer, self.generator_optimizer
        if self._place == "list and dict":
            return self.optimizers[0], self.optimizers[1]["generator"]
        return self.critic.optimizer, self.generator.optimizer

    def call(self, x):
        return self.critic(self.generator(x))

    def train_step(self, data):
        real, _ = data
        critic, generator = self.pair()
        with tf.GradientTape() as tape:
            critic_loss = tf.reduce_mean(
                tf.square(self.critic(real) - 1) + tf.square(self.critic(self.generator(real)))
            )
        variables = self.critic.trainable_variables
        critic.apply_gradients(zip(tape.gradient(critic_loss, variables), variables, strict=True))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(real) - 1))
        variables = self.generator.trainable_variables
        generator.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"critic_loss": critic_loss, "loss": loss}


def samples(world):
    x = np.random.default_rng(3).normal(size=(BATCH * STEPS * world, FEATURES)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, x[:, :1]))


def new_model(seed, *args, **kwargs):
    keras.utils.set_random_seed(seed)
    return Adversaries(*args, **kwargs)


def fit(model, *callbacks, epochs=1, dataset=None):
    dataset = tfdist.shard(samples(tfdist.size()).batch(BATCH)) if dataset is None else dataset
    return model.fit(dataset, epochs=epochs, verbose=0, callbacks=list(callbacks))


def one_process(world, rate, epochs=1):
    """On the global batches: step s of all ranks is their batches s together."""
    model = new_model(0, optimizers=(keras.optimizers.SGD(rate, momentum=0.9), keras.optimizers.Adam(rate)))
    model.fit(samples(world).batch(BATCH * world), epochs=epochs, verbose=0)
    return model


def state_of(model):
    return [np.asarray(variable) for variable in model_state.variables_of(model)]


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("place", ["attribute", "list and dict", "nested models"])
def test_equals_one_process(world, place):
    model = new_model(tfdist.rank(), place)
    fit(model, DataParallel(), epochs=2)
    assert_identical_on_ranks(state_of(model))
    expected = one_process(world, RATE * world, epochs=2)
    assert_close(model.get_weights(), expected.get_weights())
    for each in model.pair():
        assert int(each.iterations) == 2 * STEPS
        assert float(each.learning_rate) == pytest.approx(RATE * world)


def test_wrapped_by_the_script(world):
    """As a script written for Horovod does; each optimizer keeps its own settings."""
    pair = (keras.optimizers.SGD(RATE, momentum=0.9), keras.optimizers.Adam(RATE))
    model = new_model(tfdist.rank(), optimizers=[tfdist.DistributedOptimizer(each) for each in pair])
    fit(model, BroadcastGlobalVariablesCallback(0))
    assert_identical_on_ranks(state_of(model))
    assert_close(model.get_weights(), one_process(world, RATE).get_weights())


def test_all_rates_are_warmed_up(world):
    rates = []
    watch = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: rates.append([float(each.learning_rate) for each in model.pair()])
    )
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([100], [RATE, 0.0])
    model = new_model(0, optimizers=(keras.optimizers.SGD(RATE, momentum=0.9), keras.optimizers.Adam(schedule)))
    fit(model, DataParallel(warmup_epochs=1), watch, epochs=2)
    expected = [RATE * (1 + (world - 1) * min(step / STEPS, 1)) for step in range(2 * STEPS)]
    np.testing.assert_allclose(rates, np.stack([expected, expected], axis=1), rtol=1e-6)
    assert_identical_on_ranks(model.get_weights())


@pytest.mark.parametrize("what", ["warm-up", "schedule", "noise scale"])
def test_a_callback_of_the_compiled_optimizer_alone_says_so(world, what):
    callback = {
        "warm-up": lambda: LearningRateWarmupCallback(RATE),
        "schedule": lambda: LearningRateScheduleCallback(RATE, 0.5),
        "noise scale": lambda: Metrics(gradient_noise_scale=True),
    }[what]()
    model = new_model(0)
    with pytest.raises(ConfigError, match="also trained by critic_optimizer"):
        fit(model, DataParallel(), callback, epochs=2)


class Stop(keras.callbacks.Callback):
    """Stops where a killed process would."""

    def on_train_batch_begin(self, batch, logs=None):
        if batch == 4:
            raise KeyboardInterrupt


def test_resumes_with_the_state_of_all_optimizers(world, shared_tmp_path):
    def train(folder, *callbacks):
        model = new_model(tfdist.rank())
        fit(model, DataParallel(), BackupAndRestore(shared_tmp_path / folder, save_freq=3), *callbacks)
        return model

    whole = train("whole")
    with pytest.raises(KeyboardInterrupt):
        train("parts", Stop())
    resumed = train("parts")
    for one, other in zip(state_of(resumed), state_of(whole), strict=True):
        assert one.tobytes() == other.tobytes()
    assert_identical_on_ranks(state_of(resumed))


def test_a_rank_without_a_batch_gets_all_states(world):
    """The last rank never takes the step in which Keras builds the optimizers."""
    dataset = samples(world).batch(BATCH).take(world - 1).filter(lambda *batch: True)  # of unknown length
    model = new_model(tfdist.rank())
    fit(model, DataParallel(), dataset=tfdist.shard(dataset, remainder="join"))
    assert all(each.built for each in model_optimizer.optimizers_of(model))
    assert_identical_on_ranks(state_of(model))


def test_a_file_has_the_rates_of_one_process(world, shared_tmp_path):
    model = new_model(tfdist.rank(), "nested models")
    path = str(shared_tmp_path / "critic.keras")
    fit(model, DataParallel())
    if tfdist.rank() == 0:
        model.critic.save(path)
        loaded = keras.saving.load_model(path)
        assert float(loaded.optimizer.learning_rate) == pytest.approx(RATE)
        assert float(keras_version.learning_rate_of(model.critic.optimizer)) == pytest.approx(RATE * world)


def test_errors_name_the_optimizer(world):
    """From the third step on, after the look at drift, the last rank trains fewer variables of the critic."""
    model = new_model(0)

    def freeze(batch, logs):
        model.critic.layers[0].bias.trainable = batch == 0 or tfdist.rank() < world - 1
        model.make_train_function(force=True)

    with pytest.raises((tfdist.errors.MismatchError, tf.errors.FailedPreconditionError), match="of critic_optimizer"):
        fit(model, DataParallel(), keras.callbacks.LambdaCallback(on_train_batch_end=freeze))
