"""Parity of training steps that XLA compiles: as test_parity, where more is tested without XLA.

Rank 0 also trains the reference: a plain Keras optimizer, without XLA, on the batches of all ranks put together.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.ops.graph import xla
from tfdist.testing.parity import assert_close, assert_identical_on_ranks

if xla.obstacle():
    pytest.skip(xla.obstacle(), allow_module_level=True)

STEPS, BATCH, FEATURES = 6, 4, 5
SIZES = pytest.mark.ranks(1, 2, 3)

OPTIMIZERS = {
    "momentum": lambda **kw: keras.optimizers.SGD(0.05, momentum=0.9, **kw),
    "adam": lambda **kw: keras.optimizers.Adam(0.005, **kw),
}
SETTINGS = {
    "plain": {},
    "accumulated": {"gradient_accumulation_steps": 2},
    "global_clipnorm": {"global_clipnorm": 0.05},
    "accumulated, clipped": {"gradient_accumulation_steps": 2, "clipnorm": 0.05},
}


def data_of(rank):
    """The samples of one rank; no two ranks have the same."""
    generator = np.random.default_rng(100 + rank)
    x = generator.normal(size=(STEPS * BATCH, FEATURES)).astype("float32")
    return x, np.stack([np.sin(x[:, 0] + rank), x[:, 1] * x[:, 2]], axis=1).astype("float32")


def concatenated(world):
    """Step s holds batch s of every rank, one after the other."""
    parts = [data_of(rank) for rank in range(world)]
    steps = [slice(step * BATCH, (step + 1) * BATCH) for step in range(STEPS)]
    return tuple(np.concatenate([part[k][step] for step in steps for part in parts]) for k in (0, 1))


def new_model(seed, *layers, policy=None):
    keras.utils.set_random_seed(seed)
    hidden = [keras.layers.Dense(6, activation="tanh", dtype=policy), *(layer() for layer in layers)]
    return keras.Sequential([keras.Input((FEATURES,)), *hidden, keras.layers.Dense(2)])


def fit(model, x, y, batch, *callbacks):
    return model.fit(x, y, batch_size=batch, shuffle=False, verbose=0, callbacks=list(callbacks)).history


def reference(world, optimizer, *layers, policy=None):
    model = new_model(0, *layers, policy=policy)
    model.compile(optimizer, loss="mse", metrics=["mae"], jit_compile=False)
    history = fit(model, *concatenated(world), BATCH * world)
    return model, history


def train(path, optimizer, *layers, policy=None):
    """As its name says, on this rank's samples; from rank 0's first weights."""
    model = new_model(tfdist.rank(), *layers, policy=policy)
    if path == "explicit":
        callback = tfdist.callbacks.BroadcastGlobalVariablesCallback(0)
        optimizer = tfdist.DistributedOptimizer(optimizer, num_groups=2)
    else:
        callback = tfdist.callbacks.DataParallel(scale_learning_rate=False)
    model.compile(optimizer, loss="mse", metrics=["mae"], jit_compile=True)
    history = fit(model, *data_of(tfdist.rank()), BATCH, callback)
    assert model.jit_compile, "XLA was given up"
    return model, history


def state_of(model):
    """Weights and optimizer state: what must be the same on every rank. Gradients still accumulating are its own."""
    shared = [v for v in model.optimizer.variables if "accumul" not in v.path]
    return [*model.get_weights(), *(np.asarray(variable) for variable in shared)]


@SIZES
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("path", ["explicit", "plugin"])
def test_settings(world, path, optimizer, setting):
    model, history = train(path, OPTIMIZERS[optimizer](**SETTINGS[setting]))
    assert_identical_on_ranks(state_of(model), "weights and optimizer state")
    if tfdist.rank() == 0:
        expected, expected_history = reference(world, OPTIMIZERS[optimizer](**SETTINGS[setting]))
        assert_close(model.get_weights(), expected.get_weights())
        if path == "plugin":  # its metrics are those of all ranks
            assert_close(history["mae"], expected_history["mae"])


@SIZES
@pytest.mark.parametrize("path", ["explicit", "plugin"])
def test_loss_scaling_in_mixed_precision(world, path):
    """The rounding of float16 differs between XLA and kernels, so the reference is XLA's own, on one rank."""

    def make():
        return keras.optimizers.LossScaleOptimizer(OPTIMIZERS["momentum"](), initial_scale=64.0)

    policy = keras.dtype_policies.DTypePolicy("mixed_float16")
    model, _ = train(path, make(), policy=policy)
    assert_identical_on_ranks(state_of(model), "weights and optimizer state")
    if tfdist.rank() == 0:
        expected, _ = reference(world, make(), policy=policy)
        assert_close(model.get_weights(), expected.get_weights(), relative=2**-8, floor=1e-1)


@SIZES
@pytest.mark.parametrize("path", ["explicit", "plugin"])
def test_an_infinity_on_one_rank_skips_the_step_on_all(world, path):
    inner = OPTIMIZERS["momentum"]()
    model = new_model(tfdist.rank(), policy=keras.dtype_policies.DTypePolicy("mixed_float16"))
    optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=256.0)
    callback = tfdist.callbacks.DataParallel(scale_learning_rate=False)
    if path == "explicit":
        optimizer = tfdist.DistributedOptimizer(optimizer)
        callback = tfdist.callbacks.BroadcastGlobalVariablesCallback(0)
    model.compile(optimizer, loss="mse", jit_compile=True)
    x, y = data_of(tfdist.rank())
    if tfdist.rank() == world - 1:
        x[2 * BATCH] = np.inf
    fit(model, x, y, BATCH, callback)
    assert_identical_on_ranks(state_of(model), "weights and optimizer state")
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    assert float(model.optimizer.dynamic_scale) == 128.0
    assert int(model.optimizer.inner_optimizer.iterations) == STEPS - 1


@SIZES
@pytest.mark.parametrize("path", ["explicit", "plugin"])
def test_batch_normalisation_over_all_ranks(world, path):
    model, _ = train(path, OPTIMIZERS["momentum"](), tfdist.SyncBatchNormalization)
    assert_identical_on_ranks(state_of(model), "weights and optimizer state")
    if tfdist.rank() == 0:
        expected, _ = reference(world, OPTIMIZERS["momentum"](), keras.layers.BatchNormalization)
        assert_close(model.get_weights(), expected.get_weights(), relative=1e-3)


@pytest.mark.ranks(2, 3)
def test_compression(world):
    """Sixteen bits on the wire leave a trace in the weights, of the size of their rounding."""
    ends = {}
    for compression in ("none", "bf16"):
        model = new_model(0)
        optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(0.05), compression=compression)
        model.compile(optimizer, loss="mse", jit_compile=True)
        fit(model, *data_of(tfdist.rank()), BATCH)
        assert_identical_on_ranks(model.get_weights())
        ends[compression] = np.concatenate([weight.ravel() for weight in model.get_weights()])
    assert 0 < np.abs(ends["none"] - ends["bf16"]).max() < 2 * STEPS * 2**-8 * 0.05


@pytest.mark.ranks(2, 3)
def test_unequal_numbers_of_batches(world):
    """Ranks that are through take part with zeros in the compiled steps of the others."""
    rows = (3 * world + 1) * BATCH
    x, y = (np.resize(part, (rows, part.shape[1])) for part in concatenated(world))
    model = new_model(tfdist.rank())
    model.compile(OPTIMIZERS["momentum"](), loss="mse", jit_compile=True)
    dataset = tfdist.shard(tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH), remainder="join")
    model.fit(dataset, verbose=0, callbacks=[tfdist.callbacks.DataParallel(scale_learning_rate=False)])
    assert_identical_on_ranks(model.get_weights())
    assert int(model.optimizer.iterations) == 4


def test_auto_trains_with_xla_on_a_gpu_alone(world):
    model = new_model(tfdist.rank())
    model.compile(OPTIMIZERS["momentum"](), loss="mse", jit_compile="auto")
    fit(model, *data_of(tfdist.rank()), BATCH, tfdist.callbacks.DataParallel())
    assert model.jit_compile == bool(tf.config.list_physical_devices("GPU"))
    assert_identical_on_ranks(model.get_weights())
