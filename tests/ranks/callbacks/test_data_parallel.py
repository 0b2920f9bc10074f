"""The plugin: what it does to a model compiled in the ordinary way, in one fit and in the next."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.callbacks import DataParallel
from tfdist.testing.parity import assert_close, assert_identical_on_ranks

FEATURES, BATCH, STEPS = 4, 4, 6


def samples(rank, count=BATCH * STEPS):
    generator = np.random.default_rng(20 + rank)
    x = generator.normal(size=(count, FEATURES)).astype("float32")
    return x, np.sin(x[:, :1] + rank).astype("float32")


def concatenated(world):
    parts = [samples(rank) for rank in range(world)]
    return tuple(
        np.concatenate([part[k][s * BATCH : (s + 1) * BATCH] for s in range(STEPS) for part in parts]) for k in (0, 1)
    )


def new_model(optimizer, seed=0, **kwargs):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [keras.Input((FEATURES,)), keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(1)]
    )
    model.compile(optimizer, loss="mse", **kwargs)
    return model


def fit(model, *callbacks, epochs=1, **kwargs):
    options = {"batch_size": BATCH, "epochs": epochs, "shuffle": False, "verbose": 0, **kwargs}
    return model.fit(*samples(tfdist.rank()), callbacks=list(callbacks), **options)


@pytest.mark.ranks(1, 2, 3)
def test_a_second_fit_is_right(world):
    """Rate scaled once, nothing stacked, in a function that is not traced again; and the same with new callbacks."""
    rate = 0.02
    model = new_model(keras.optimizers.SGD(rate, momentum=0.9), seed=tfdist.rank())
    plugin = DataParallel()
    fit(model, plugin)
    function = model.train_function
    fit(model, plugin)
    assert model.train_function is function
    fit(model, DataParallel())
    assert_identical_on_ranks(model.get_weights())
    np.testing.assert_allclose(float(model.optimizer.learning_rate), rate * world, rtol=1e-6)
    if tfdist.rank() == 0:
        reference = new_model(keras.optimizers.SGD(rate * world, momentum=0.9))
        reference.fit(*concatenated(world), batch_size=BATCH * world, epochs=3, shuffle=False, verbose=0)
        assert_close(model.get_weights(), reference.get_weights())


def test_a_function_traced_before_is_dropped(world):
    model = new_model(keras.optimizers.SGD(0.05), seed=0)
    fit(model)
    fit(model, DataParallel(scale_learning_rate=False))
    assert_identical_on_ranks(model.get_weights())


def test_compiled_again(world):
    model = new_model(keras.optimizers.SGD(0.05), seed=tfdist.rank())
    fit(model, DataParallel())
    model.compile(keras.optimizers.Adam(0.01), loss="mae")
    fit(model, DataParallel())
    assert tfdist.optimizer.is_distributed(model.optimizer)
    assert_identical_on_ranks(model.get_weights())


@pytest.mark.parametrize("how", [{}, {"run_eagerly": True}, {"steps_per_execution": 4}], ids=["graph", "eager", "four"])
def test_a_model_without_input_shape(world, how):
    """Keras builds such a model in the first step, and that must not start from weights of its own."""
    keras.utils.set_random_seed(tfdist.rank())
    model = keras.Sequential([keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss="mse", metrics=["mae"], **how)
    fit(model, DataParallel())
    assert_identical_on_ranks(model.get_weights())
    if tfdist.rank() == 0:
        keras.utils.set_random_seed(0)
        reference = keras.Sequential([keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(1)])
        reference.compile(keras.optimizers.SGD(0.05 * world, momentum=0.9), loss="mse")
        reference.fit(*concatenated(world), batch_size=BATCH * world, shuffle=False, verbose=0)
        assert_close(model.get_weights(), reference.get_weights())


def test_batch_normalisation_and_frozen_layers(world):
    """Moving statistics are the mean of the ranks'; frozen weights keep their bits, which a mean of three would not."""
    keras.utils.set_random_seed(tfdist.rank())
    frozen = keras.layers.Dense(64, trainable=False)
    normalisation = keras.layers.BatchNormalization(momentum=0.5)
    model = keras.Sequential([keras.Input((FEATURES,)), normalisation, frozen, keras.layers.Dense(1)])
    model.compile("sgd", loss="mse")
    start = tfdist.broadcast(frozen.kernel, 0, name="kernel").numpy()
    seen = []
    watch = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(normalisation.moving_mean.numpy())
    )
    fit(model, DataParallel(), watch)
    by_rank = tfdist.allgather_object(seen[-1], name="moving means")
    np.testing.assert_allclose(normalisation.moving_mean.numpy(), np.mean(by_rank, axis=0), rtol=1e-5, atol=1e-6)
    assert not np.array_equal(by_rank[0], by_rank[1])
    assert_identical_on_ranks(model.get_weights())
    assert frozen.kernel.numpy().tobytes() == start.tobytes()


@pytest.mark.ranks(1, 2, 3)
def test_same_data_is_noticed(world, warnings_of_tfdist):
    dataset = tf.data.Dataset.from_tensor_slices(concatenated(world)).batch(BATCH)
    model = new_model("sgd")
    model.fit(dataset, epochs=2, verbose=0, callbacks=[DataParallel()])
    warned = [line for line in warnings_of_tfdist if "dataset = tfdist.shard(dataset)" in line]
    assert len(warned) == (1 if world > 1 and tfdist.rank() == 0 else 0)
    warnings_of_tfdist.clear()
    model.fit(tfdist.shard(dataset), verbose=0, callbacks=[DataParallel()])
    assert not [line for line in warnings_of_tfdist if "shard" in line and "same data" in line]


@pytest.mark.ranks(1, 2, 3)
def test_arrays_that_every_rank_has_are_noticed(world, warnings_of_tfdist):
    """Each rank shuffles them in an order of its own, so that no batch is that of another rank."""
    model, arrays = new_model("sgd"), samples(0)
    keras.utils.set_random_seed(tfdist.rank())
    model.fit(*arrays, batch_size=1, verbose=0, callbacks=[DataParallel()])
    warned = [line for line in warnings_of_tfdist if "x, y = tfdist.shard((x, y))" in line]
    assert len(warned) == (1 if world > 1 and tfdist.rank() == 0 else 0)
    warnings_of_tfdist.clear()
    model.fit(*tfdist.shard(arrays), batch_size=1, verbose=0, callbacks=[DataParallel()])
    assert not [line for line in warnings_of_tfdist if "same data" in line]


@pytest.mark.parametrize("differ", [True, False])
def test_data_that_begin_alike_are_not_taken_for_the_same(world, differ, warnings_of_tfdist):
    """Padding: the first 2,000 numbers of the batch are zero on every rank."""
    x = np.zeros((2, 2000), "float32")
    x[1, 1500:] = 1 + tfdist.rank() * differ
    model = keras.Sequential([keras.Input((2000,)), keras.layers.Dense(1)])
    model.compile("sgd", loss="mse")
    model.fit(x, np.zeros((2, 1)), batch_size=2, verbose=0, callbacks=[DataParallel()])
    warned = [line for line in warnings_of_tfdist if "same data" in line]
    assert len(warned) == (1 if tfdist.rank() == 0 and not differ else 0)


def test_given_alone(world, warnings_of_tfdist):
    """Not in a list: then Keras calls the end of a batch on another thread."""
    model = new_model(keras.optimizers.SGD(0.05), seed=tfdist.rank())
    x, y = samples(0)
    model.fit(x, y, batch_size=BATCH, epochs=3, shuffle=False, verbose=0, callbacks=DataParallel())
    assert_identical_on_ranks(model.get_weights())
    assert len([line for line in warnings_of_tfdist if "same data" in line]) == (tfdist.rank() == 0)


def test_a_model_that_cannot_be_built(world):
    """The error says what to do, on every rank."""

    class Unbuildable(keras.Model):
        def call(self, x):
            raise NotImplementedError("only with real data")

    model = Unbuildable()
    model.compile("sgd", loss="mse")
    with pytest.raises(tfdist.errors.ConfigError, match="Build it before fit"):
        fit(model, DataParallel())


def test_strings_in_the_data(world):
    """What has no number is left out of the comparison."""
    model = keras.Sequential([keras.Input((), dtype="string"), Lengths(), keras.layers.Dense(1)])
    model.compile("sgd", loss="mse")
    words = tf.constant([f"{'x' * (tfdist.rank() + 1)}{i}" for i in range(8)])
    model.fit(words, np.arange(8.0).reshape(8, 1) + tfdist.rank(), batch_size=4, verbose=0, callbacks=[DataParallel()])
    assert_identical_on_ranks(model.get_weights())


class Lengths(keras.layers.Layer):
    def call(self, words):
        return tf.cast(tf.strings.length(words), tf.float32)[:, None]

    def compute_output_shape(self, shape):
        return (*shape, 1)

    def compute_output_spec(self, words):
        return keras.KerasTensor((*words.shape, 1), "float32")


@pytest.mark.parametrize("verbose", ["auto", 1, 2])
def test_only_rank_zero_prints(world, verbose, capsys):
    model = new_model("sgd")
    stopping = keras.callbacks.EarlyStopping(monitor="loss", min_delta=10.0, verbose=1)
    fit(model, DataParallel(), stopping, epochs=3, verbose=verbose)
    printed = capsys.readouterr().out
    assert ("loss" in printed) == (tfdist.rank() == 0)
    assert tfdist.rank() == 0 or printed == ""


def test_checkpoint(world, shared_tmp_path):
    path = shared_tmp_path / "model.keras"
    model = new_model("sgd")
    fit(model, DataParallel(checkpoint=path))
    loaded = keras.models.load_model(path)
    assert_close(loaded.get_weights(), model.get_weights(), relative=0)


def test_what_cannot_be_honoured_is_refused(world):
    for arguments in ({"compression": "int8"}, {"warmup_epochs": 1, "scale_learning_rate": False}):
        with pytest.raises(tfdist.errors.ConfigError):
            DataParallel(**arguments)


def test_compression(world):
    """The wire type is in force: sixteen bits leave a trace in the weights."""
    results = {}
    for compression in ("none", "fp16", "bf16"):
        model = new_model(keras.optimizers.SGD(0.05))
        fit(model, DataParallel(compression=compression))
        assert_identical_on_ranks(model.get_weights())
        results[compression] = np.concatenate([weight.ravel() for weight in model.get_weights()])
    half = np.abs(results["fp16"] - results["none"]).max()
    brain = np.abs(results["bf16"] - results["none"]).max()
    assert 0 < half < brain < 0.05


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize(("accumulated", "scaled"), [(1, False), (2, False), (1, True)])
def test_scales_of_float8_are_those_of_all_ranks(world, accumulated, scaled):
    """Keras replaces them with their gradients, so they are the largest and not the mean."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])
    model.quantize("float8")
    optimizer = keras.optimizers.SGD(0.001, gradient_accumulation_steps=accumulated if accumulated > 1 else None)
    model.compile(keras.optimizers.LossScaleOptimizer(optimizer) if scaled else optimizer, "mse")
    largest = 10.0 * (1 + tfdist.rank())
    x = np.random.default_rng(tfdist.rank()).uniform(-1, 1, (16, 4)).astype("float32")
    x[::4] = largest  # in each batch
    model.fit(x, x[:, :1], batch_size=4, verbose=0, shuffle=False, callbacks=[DataParallel(scale_learning_rate=False)])
    assert_identical_on_ranks(model.get_weights())
    (history,) = [each for each in model.layers[0].variables if "inputs_amax_history" in each.path]
    assert float(np.max(history)) == 10.0 * world
