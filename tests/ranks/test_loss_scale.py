"""An overflow on any one rank: all ranks skip the same step and halve the same scale, in every construction."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.callbacks import BroadcastGlobalVariablesCallback, DataParallel
from tfdist.testing.parity import assert_identical_on_ranks

FEATURES, BATCH, STEPS, OVERFLOW = 4, 4, 8, 5
SCALE = 16.0

OPTIMIZERS = {
    "momentum": lambda **kwargs: keras.optimizers.SGD(0.01, momentum=0.9, **kwargs),
    "adam": lambda **kwargs: keras.optimizers.Adam(0.01, global_clipnorm=0.5, **kwargs),
    "clipped": lambda **kwargs: keras.optimizers.AdamW(0.01, clipvalue=0.1, use_ema=True, **kwargs),
}


def scaled(optimizer):
    return keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=SCALE)


def distributed(optimizer, **kwargs):
    return tfdist.DistributedOptimizer(optimizer, **kwargs)


def samples(overflowing):
    """One batch of one rank has a target so large that its gradient is infinite."""
    generator = np.random.default_rng(7 + tfdist.rank())
    x = generator.normal(size=(BATCH * STEPS, FEATURES)).astype("float32")
    y = np.sin(x[:, :1])
    if tfdist.rank() == overflowing:
        y[BATCH * OVERFLOW] = 3e38
    return x, y


def new_model():
    keras.utils.set_random_seed(tfdist.rank())
    policy = keras.dtype_policies.DTypePolicy("mixed_float16")
    layers = [
        keras.Input((FEATURES,)),
        keras.layers.Dense(6, activation="tanh", dtype=policy),
        keras.layers.Dense(1, dtype="float32"),
    ]
    return keras.Sequential(layers)


def model_to_scale():
    """One around whose optimizer `compile` puts a `LossScaleOptimizer`."""
    keras.config.set_dtype_policy("mixed_float16")
    try:
        return new_model()
    finally:
        keras.config.set_dtype_policy("float32")


def fit(optimizer, overflowing, *callbacks, **kwargs):
    """`compile` puts a `LossScaleOptimizer` around the optimizer where the policy of the model says so."""
    model = new_model()
    model.compile(optimizer, loss="mse", **kwargs)
    model.fit(*samples(overflowing), batch_size=BATCH, shuffle=False, verbose=0, callbacks=list(callbacks))
    return model, model.optimizer


def by_compile(optimizer, overflowing, *callbacks, **kwargs):
    model = model_to_scale()
    model.compile(optimizer, loss="mse", **kwargs)
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    model.optimizer.initial_scale = SCALE
    model.fit(*samples(overflowing), batch_size=BATCH, shuffle=False, verbose=0, callbacks=list(callbacks))
    return model, model.optimizer


def loop(optimizer, overflowing, tape_of=lambda tape: tape, compiled=True, jit_compile=False):
    model = new_model()
    optimizer.build(model.trainable_variables)
    tfdist.broadcast_variables([*model.weights, *optimizer.variables], root_rank=0)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_mean(tf.square(model(x, training=True) - y)))
        gradients = tape_of(tape).gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    step = tf.function(step, jit_compile=jit_compile) if compiled else step
    x, y = samples(overflowing)
    for begin in range(0, len(x), BATCH):
        step(tf.constant(x[begin : begin + BATCH]), tf.constant(y[begin : begin + BATCH]))
    return model, optimizer


HVD = BroadcastGlobalVariablesCallback
# The construction by name, with a function of an optimizer's maker and the rank that overflows.
CONSTRUCTIONS = {
    "compile around distributed": lambda make, rank: by_compile(distributed(make()), rank, HVD(0)),
    "compile around distributed, plugin": lambda make, rank: by_compile(
        distributed(make()), rank, DataParallel(scale_learning_rate=False)
    ),
    "compile around plain, plugin": lambda make, rank: by_compile(
        make(), rank, DataParallel(scale_learning_rate=False)
    ),
    "compile around accumulating": lambda make, rank: by_compile(
        distributed(make(), backward_passes_per_step=2), rank, HVD(0)
    ),
    "compile, eager": lambda make, rank: by_compile(distributed(make()), rank, HVD(0), run_eagerly=True),
    "compile, XLA": lambda make, rank: by_compile(distributed(make()), rank, HVD(0), jit_compile=True),
    "distributed around scaled": lambda make, rank: fit(distributed(scaled(make())), rank, HVD(0)),
    "scaled around distributed": lambda make, rank: fit(scaled(distributed(make())), rank, HVD(0)),
    "loop, scaled around distributed": lambda make, rank: loop(scaled(distributed(make())), rank),
    "loop, scaled around distributed, eager": lambda make, rank: loop(
        scaled(distributed(make())), rank, compiled=False
    ),
    "loop, scaled around distributed, XLA": lambda make, rank: loop(
        scaled(distributed(make())), rank, jit_compile=True
    ),
    "loop, scaled around accumulating": lambda make, rank: loop(
        scaled(distributed(make(), backward_passes_per_step=2)), rank
    ),
    "loop, scaled around partial": lambda make, rank: loop(
        scaled(tfdist.PartialDistributedOptimizer(make(), local_layers=[])), rank
    ),
    "loop, distributed around scaled": lambda make, rank: loop(distributed(scaled(make())), rank),
    "loop, tape": lambda make, rank: loop(scaled(make()), rank, tape_of=tfdist.DistributedGradientTape),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("construction", CONSTRUCTIONS)
def test_all_ranks_skip_the_step(world, construction, optimizer):
    if "XLA" in construction and tfdist.ops.graph.xla.obstacle():
        pytest.skip(f"needs XLA: {tfdist.ops.graph.xla.obstacle()}")
    skipped = []
    for overflowing in range(world):
        model, used = CONSTRUCTIONS[construction](OPTIMIZERS[optimizer], overflowing)
        assert all(np.isfinite(v).all() for v in model.get_weights())
        if "accumulating" not in construction:
            assert_identical_on_ranks([np.asarray(variable) for variable in used.variables])
        assert_identical_on_ranks([*model.get_weights(), np.asarray(used.dynamic_scale), np.asarray(used.iterations)])
        skipped.append(SCALE / float(used.dynamic_scale))
    assert skipped == [2.0] * world


@pytest.mark.ranks(2)
def test_the_inner_optimizer_reduces_without_it_too(world):
    """`compile` puts a `LossScaleOptimizer` around it, which a loop before and after, and a later `compile`, do not."""
    model, optimizer = model_to_scale(), distributed(keras.optimizers.SGD(0.01))
    x, y = samples(overflowing=None)
    tfdist.broadcast_variables(model.variables, root_rank=0)

    def take_step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x) - y))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        assert_identical_on_ranks(model.get_weights())

    def fit_once(**kwargs):
        model.compile(optimizer, loss="mse", **kwargs)
        model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
        assert_identical_on_ranks(model.get_weights())

    take_step()
    fit_once()
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    take_step()
    fit_once(auto_scale_loss=False)
    assert model.optimizer is optimizer
