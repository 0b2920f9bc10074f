"""Parity: distributed training equals one process on the concatenated batch, bit for bit on every rank.

Rank 0 also trains the reference: a plain Keras optimizer on the batches of all ranks put together.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.testing.parity import assert_close, assert_identical_on_ranks

STEPS = 10
BATCH = 4
FEATURES = 5

OPTIMIZERS = {
    "momentum": lambda **kw: keras.optimizers.SGD(0.05, momentum=0.9, **kw),
    "adam": lambda **kw: keras.optimizers.Adam(0.005, **kw),
    "adamw_ema": lambda **kw: keras.optimizers.AdamW(0.005, weight_decay=0.02, use_ema=True, ema_momentum=0.9, **kw),
}
CLIPPING = {
    "unclipped": {},
    "clipnorm": {"clipnorm": 0.05},
    "clipvalue": {"clipvalue": 0.02},
    "global_clipnorm": {"global_clipnorm": 0.05},
}
ACCUMULATION = {"every_step": {}, "accumulated": {"gradient_accumulation_steps": 2}}


def data_of(rank, batch=BATCH, steps=STEPS):
    """The samples of one rank; no two ranks have the same."""
    generator = np.random.default_rng(100 + rank)
    x = generator.normal(size=(steps * batch, FEATURES)).astype("float32")
    y = np.stack([np.sin(x[:, 0] + rank), x[:, 1] * x[:, 2]], axis=1).astype("float32")
    return x, y


def concatenated(world, batches=None):
    """Step s holds batch s of every rank, one after the other."""
    batches = batches or [BATCH] * world
    parts = [data_of(rank, batches[rank]) for rank in range(world)]
    return tuple(
        np.concatenate(
            [
                part[k][step * b : (step + 1) * b]
                for step in range(STEPS)
                for part, b in zip(parts, batches, strict=True)
            ]
        )
        for k in (0, 1)
    )


def new_model(seed):
    keras.utils.set_random_seed(seed)
    return keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(2)])


def fit(model, x, y, batch, **kwargs):
    model.fit(x, y, batch_size=batch, epochs=1, shuffle=False, verbose=0, **kwargs)


def reference(world, optimizer, sample_weight=None, batches=None):
    """Weights after one process trained on the batches of all ranks together, from rank 0's first weights."""
    model = new_model(seed=0)
    model.compile(optimizer, loss="mse")
    x, y = concatenated(world, batches)
    fit(model, x, y, sum(batches or [BATCH] * world), sample_weight=sample_weight)
    return model.get_weights()


def state_of(model):
    """Weights and optimizer state: what must be the same on every rank. Gradients still accumulating are its own."""
    shared = [v for v in model.optimizer.variables if "accumul" not in v.path]
    return [*model.get_weights(), *(np.asarray(variable) for variable in shared)]


def check(model, expected, **tolerance):
    assert_identical_on_ranks(state_of(model), "weights and optimizer state")
    if tfdist.rank() == 0:
        assert_close(model.get_weights(), expected(), **tolerance)


def train_explicit(optimizer, **compile_arguments):
    model = new_model(seed=tfdist.rank())
    model.compile(tfdist.DistributedOptimizer(optimizer), loss="mse", **compile_arguments)
    fit(model, *data_of(tfdist.rank()), BATCH, callbacks=[tfdist.callbacks.BroadcastGlobalVariablesCallback(0)])
    return model


def train_plugin(optimizer, **compile_arguments):
    """`shard` deals the batches in turn, which is the order of `concatenated`."""
    model = new_model(seed=tfdist.rank())
    model.compile(optimizer, loss="mse", **compile_arguments)
    dataset = tf.data.Dataset.from_tensor_slices(concatenated(tfdist.size())).batch(BATCH)
    model.fit(tfdist.shard(dataset), epochs=1, verbose=0, callbacks=[tfdist.callbacks.DataParallel()])
    return model


def scaled(optimizer, factor):
    optimizer.learning_rate = float(optimizer.learning_rate) * factor
    return optimizer


@pytest.mark.ranks(1, 2, 3, 4)
@pytest.mark.parametrize("clipping", CLIPPING)
@pytest.mark.parametrize("accumulation", ACCUMULATION)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_explicit_pieces(world, optimizer, accumulation, clipping, monkeypatch):
    """In two buckets, by a thread: the first kernel, and all else."""
    monkeypatch.setenv("TFDIST_FUSION_THRESHOLD", "100")
    monkeypatch.setenv("TFDIST_COMMUNICATION_THREAD", "1")

    def make():
        return OPTIMIZERS[optimizer](**CLIPPING[clipping], **ACCUMULATION[accumulation])

    check(train_explicit(make()), lambda: reference(world, make()))


@pytest.mark.ranks(1, 2, 3, 4)
@pytest.mark.parametrize("clipping", CLIPPING)
@pytest.mark.parametrize("accumulation", ACCUMULATION)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_plugin(world, optimizer, accumulation, clipping):
    """The reference is one process at the scaled rate."""

    def make():
        return OPTIMIZERS[optimizer](**CLIPPING[clipping], **ACCUMULATION[accumulation])

    check(train_plugin(make()), lambda: reference(world, scaled(make(), world)))


@pytest.mark.ranks(1, 2, 3, 4)
@pytest.mark.parametrize("how", [{"steps_per_execution": 4}, {"run_eagerly": True}], ids=["four_steps", "eager"])
@pytest.mark.parametrize("accumulation", ACCUMULATION)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("path", ["explicit", "plugin"])
def test_execution(world, path, optimizer, accumulation, how):
    def make():
        return OPTIMIZERS[optimizer](**ACCUMULATION[accumulation])

    train, factor = (train_explicit, 1) if path == "explicit" else (train_plugin, world)
    check(train(make(), **how), lambda: reference(world, scaled(make(), factor)))


def test_reference_notices_a_missing_reduction(world):
    """What the parity tests would see if ranks trained alone: they must fail then."""
    model = new_model(seed=0)
    model.compile(OPTIMIZERS["momentum"](), loss="mse")
    fit(model, *data_of(tfdist.rank()), BATCH)
    with pytest.raises(AssertionError):
        assert_identical_on_ranks(model.get_weights())
    with pytest.raises(AssertionError):
        assert_close(model.get_weights(), reference(world, OPTIMIZERS["momentum"]()))


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_batches_that_differ_by_rank(world, optimizer):
    """Gradients are the mean of the ranks' means: one process that weighs rank r's samples by B / (n * b_r)."""
    batches = [BATCH + rank for rank in range(world)]
    mine = batches[tfdist.rank()]
    model = new_model(seed=tfdist.rank())
    model.compile(tfdist.DistributedOptimizer(OPTIMIZERS[optimizer]()), loss="mse")
    broadcast = tfdist.callbacks.BroadcastGlobalVariablesCallback(0)
    fit(model, *data_of(tfdist.rank(), mine), mine, callbacks=[broadcast])
    total = sum(batches)
    weights = np.concatenate([np.full(b, total / (world * b), "float32") for b in batches] * STEPS)
    check(model, lambda: reference(world, OPTIMIZERS[optimizer](), weights, batches))


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize(("compression", "relative"), [("fp16", 2**-11), ("bf16", 2**-8)])
def test_compression(world, compression, relative):
    """Each gradient is cast twice; with plain SGD ten steps add up to at most twenty casts of the largest step."""
    rate = 0.05
    model = new_model(seed=tfdist.rank())
    model.compile(
        tfdist.DistributedOptimizer(keras.optimizers.SGD(rate), compression=tfdist.Compression[compression]), loss="mse"
    )
    fit(model, *data_of(tfdist.rank()), BATCH, callbacks=[tfdist.callbacks.BroadcastGlobalVariablesCallback(0)])
    assert_identical_on_ranks(state_of(model))
    if tfdist.rank() == 0:
        exact = reference(world, keras.optimizers.SGD(rate))
        start = new_model(seed=0).get_weights()
        differences = [np.abs(a - b).max() for a, b in zip(model.get_weights(), exact, strict=True)]
        travelled = max(np.abs(a - b).max() for a, b in zip(start, exact, strict=True))
        assert 0 < max(differences) <= 2 * STEPS * relative * max(travelled, rate)


def mixed_model(optimizer, seed):
    keras.utils.set_random_seed(seed)
    policy = keras.dtype_policies.DTypePolicy("mixed_float16")
    model = keras.Sequential(
        [keras.Input((FEATURES,)), keras.layers.Dense(6, activation="tanh", dtype=policy), keras.layers.Dense(2)]
    )
    model.compile(optimizer, loss="mse")
    return model


class Scales(keras.callbacks.Callback):
    """The loss scale and the update count after each step."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        optimizer = self.model.optimizer
        self.seen.append((float(optimizer.dynamic_scale), int(optimizer.inner_optimizer.iterations)))


@pytest.mark.ranks(1, 2, 3, 4)
@pytest.mark.parametrize("accumulation", ACCUMULATION)
@pytest.mark.parametrize("path", ["explicit", "plugin"])
def test_an_infinity_on_one_rank_skips_the_step_on_all(world, path, accumulation):
    """Step 4 of the last rank overflows: no hang, all skip that step, and the scale halves everywhere."""
    inner = keras.optimizers.SGD(0.05, momentum=0.9, **ACCUMULATION[accumulation])
    optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=256.0)
    scales = Scales()
    callbacks = [scales]
    if path == "explicit":
        optimizer = tfdist.DistributedOptimizer(optimizer)
        callbacks.append(tfdist.callbacks.BroadcastGlobalVariablesCallback(0))
    else:
        callbacks.append(tfdist.callbacks.DataParallel(scale_learning_rate=False))
    model = mixed_model(optimizer, seed=tfdist.rank())
    x, y = data_of(tfdist.rank())
    if tfdist.rank() == world - 1:
        x[4 * BATCH] = np.inf
    fit(model, x, y, BATCH, callbacks=callbacks)
    assert_identical_on_ranks(state_of(model), "weights and optimizer state")
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    assert [scale for scale, _ in scales.seen] == [256.0] * 4 + [128.0] * 6
    # Keras counts updates: steps that were taken, divided by the steps of an accumulation.
    steps = ACCUMULATION[accumulation].get("gradient_accumulation_steps", 1)
    assert [updates for _, updates in scales.seen] == [taken // steps for taken in (1, 2, 3, 4, 4, 5, 6, 7, 8, 9)]


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("accumulation", ACCUMULATION)
def test_loss_scaling_and_clipping(world, accumulation):
    """The reduced, unscaled gradient is what is clipped."""

    def make():
        inner = keras.optimizers.Adam(0.005, global_clipnorm=0.05, **ACCUMULATION[accumulation])
        return keras.optimizers.LossScaleOptimizer(inner, initial_scale=64.0)

    check(train_explicit(make()), lambda: reference(world, make()))
