"""Models under a tf.distribute strategy: one replica is trained as without, several are refused on every rank."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.callbacks import (
    BackupAndRestore,
    BroadcastGlobalVariablesCallback,
    DataParallel,
    LearningRateWarmupCallback,
    MetricAverageCallback,
    ModelCheckpoint,
)
from tfdist.elastic.keras_fit import _Fit
from tfdist.testing.parity import assert_close, assert_identical_on_ranks

FEATURES, BATCH, STEPS = 3, 2, 4
ONE = {
    "mirrored": lambda: tf.distribute.MirroredStrategy(["/cpu:0"]),
    "one device": lambda: tf.distribute.OneDeviceStrategy("/cpu:0"),
}


class TwoReplicas(tf.distribute.MirroredStrategy):
    """A process of the tests has one CPU, so it says that it has two; nothing of it may run."""

    @property
    def num_replicas_in_sync(self):
        return 2


def numbers():
    x = np.random.default_rng(80 + tfdist.rank()).normal(size=(BATCH * STEPS, FEATURES)).astype("float32")
    return x, np.sin(x[:, :1] + tfdist.rank()).astype("float32")


def momentum():
    return keras.optimizers.SGD(0.02, momentum=0.9)


OPTIMIZERS = {
    "schedule": lambda: keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.02, 2, 0.9)),
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(momentum(), initial_scale=8.0),
}


def new_model(strategy, seed, optimizer=momentum):
    with strategy.scope():
        keras.utils.set_random_seed(seed)
        layers = [keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)]
        model = keras.Sequential([keras.Input((FEATURES,)), *layers, keras.layers.Dense(1)])
        model.compile(optimizer(), loss="mse", metrics=["mae"])
    return model


def fit(model, *callbacks, epochs=2):
    options = {"batch_size": BATCH, "epochs": epochs, "shuffle": False, "verbose": 0}
    return model.fit(*numbers(), callbacks=list(callbacks), **options).history


def state(model):
    return [*model.get_weights(), *(variable.numpy() for variable in model.optimizer.variables)]


@pytest.mark.slice("ranks")
@pytest.mark.ranks(1, 2, 3)
def test_one_replica_is_as_none(world, shared_tmp_path):
    """Weights, optimizer state, logs and rate, to the bit; files load without a strategy; a backup goes on."""
    plain = new_model(tf.distribute.get_strategy(), tfdist.rank())
    expected = fit(plain, DataParallel(warmup_epochs=1))
    for name, make in ONE.items():
        file, folder = shared_tmp_path / f"{name}.keras", shared_tmp_path / name
        model = new_model(make(), tfdist.rank())
        backup = BackupAndRestore(folder, delete_checkpoint=False)
        history = fit(model, DataParallel(warmup_epochs=1), ModelCheckpoint(str(file)), backup)
        assert history == expected
        for mine, other in zip(state(model), state(plain), strict=True):
            np.testing.assert_array_equal(mine, other)
        if tfdist.rank() == 0:
            for mine, other in zip(keras.models.load_model(file).get_weights(), plain.get_weights(), strict=True):
                np.testing.assert_array_equal(mine, other)
        tfdist.barrier(name="files are read")
        resumed = new_model(make(), 90 + tfdist.rank())
        fit(resumed, DataParallel(), BackupAndRestore(folder), epochs=3)
        again = new_model(make(), tfdist.rank())
        fit(again, DataParallel(warmup_epochs=1), epochs=3)
        for mine, other in zip(state(resumed), state(again), strict=True):
            np.testing.assert_array_equal(mine, other)


@pytest.mark.slice("ranks")
def test_each_optimizer_with_one_replica(world):
    for name, optimizer in OPTIMIZERS.items():
        plain, model = (
            new_model(strategy, tfdist.rank(), optimizer)
            for strategy in (tf.distribute.get_strategy(), ONE["mirrored"]())
        )
        assert fit(plain, DataParallel()) == fit(model, DataParallel()), name
        for mine, other in zip(state(model), state(plain), strict=True):
            np.testing.assert_array_equal(mine, other)


def test_explicit_callbacks_with_one_replica(world):
    plain, model = (
        new_model(strategy, tfdist.rank(), lambda: tfdist.DistributedOptimizer(momentum()))
        for strategy in (tf.distribute.get_strategy(), ONE["mirrored"]())
    )
    histories = [
        fit(
            each,
            BroadcastGlobalVariablesCallback(0),
            MetricAverageCallback(),
            LearningRateWarmupCallback(0.02 * world, 1),
        )
        for each in (plain, model)
    ]
    assert histories[0] == histories[1]
    assert_identical_on_ranks([weight.numpy() for weight in model.trainable_weights])
    for mine, other in zip(model.trainable_weights, plain.trainable_weights, strict=True):
        np.testing.assert_array_equal(mine.numpy(), other.numpy())


@pytest.mark.parametrize("callback", [DataParallel, lambda: BroadcastGlobalVariablesCallback(0)])
def test_several_replicas_are_refused(world, callback):
    """On every rank, also where one rank alone has them."""
    for ranks in (range(world), [world - 1]):
        strategy = TwoReplicas(["/cpu:0"])
        model = new_model(strategy if tfdist.rank() in ranks else ONE["mirrored"](), tfdist.rank())
        with pytest.raises(
            tfdist.errors.ConfigError, match="under TwoReplicas with 2 replicas; expected one replica on each of the"
        ):
            fit(model, callback())


@pytest.mark.ranks(1)
def test_one_process_keeps_its_replicas(world):
    """In a world of one the plugin changes nothing."""
    plain, model = (new_model(TwoReplicas(["/cpu:0"]), 0) for _ in range(2))
    expected, history = fit(plain), fit(model, DataParallel(), BroadcastGlobalVariablesCallback(0))
    np.testing.assert_allclose(history["loss"], expected["loss"], rtol=1e-5)
    assert_close(model.get_weights(), plain.get_weights())


def test_collectives_of_several_replicas_are_refused(world):
    strategy = TwoReplicas(["/cpu:0"])
    with strategy.scope():
        variable = tf.Variable([1.0])
    optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(0.1))

    def step():
        with tfdist.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = variable * 2
        return tape.gradient(loss, variable)

    for call in (
        lambda: strategy.run(lambda: tfdist.allreduce(tf.ones(2), name="x")),
        lambda: strategy.run(step),
        lambda: strategy.run(lambda: optimizer.apply([tf.ones(1)], [variable])),
        lambda: strategy.run(tf.function(step, autograph=False)),
    ):
        with pytest.raises(tfdist.errors.ConfigError, match="2 replicas"):
            call()
    with strategy.scope():  # once a process, not once a replica
        total = tfdist.allreduce(tf.constant([1.0]), op=tfdist.Sum, name="in the scope")
    np.testing.assert_array_equal(total.numpy(), [float(world)])


def test_an_elastic_fit_refuses_a_strategy(world):
    for make in ONE.values():
        call = {"self": new_model(make(), 0), "x": None, "epochs": 1, "steps_per_epoch": None}
        with pytest.raises(tfdist.errors.ConfigError, match="Remove the strategy"):
            _Fit(keras.Model.fit, call, [], None)


def test_keras_distribution_changes_nothing(world):
    """Keras has none for TensorFlow: each process trains on its device as without, and cannot join others."""
    with pytest.raises(AttributeError, match="initialize"):
        keras.distribution.initialize("127.0.0.1:1,127.0.0.1:2", 2, tfdist.rank())
    plain = new_model(tf.distribute.get_strategy(), tfdist.rank())
    expected = fit(plain, DataParallel())
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=["cpu:0"]))
    try:
        model = new_model(tf.distribute.get_strategy(), tfdist.rank())
        assert fit(model, DataParallel()) == expected
    finally:
        keras.distribution.set_distribution(None)
    for mine, other in zip(state(model), state(plain), strict=True):
        np.testing.assert_array_equal(mine, other)
