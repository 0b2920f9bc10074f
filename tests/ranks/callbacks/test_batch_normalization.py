"""Batch normalisation in `fit`: weights and statistics equal one process with the ordinary layer on all batches."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.callbacks import BroadcastGlobalVariablesCallback, DataParallel, MetricAverageCallback
from tfdist.testing.parity import assert_close, assert_identical_on_ranks
from tfdist.training.sync_batch_norm import synchronized

SIZES = pytest.mark.ranks(1, 2, 3)
FEATURES, BATCH, STEPS, RATE = 5, 4, 6, 0.02
SYNCHRONIZED = {
    "ours": lambda **kw: tfdist.SyncBatchNormalization(momentum=0.8, **kw),
    "keras": lambda **kw: keras.layers.BatchNormalization(momentum=0.8, synchronized=True, **kw),
}
EXECUTION = {"graph": {}, "eager": {"run_eagerly": True}, "four_steps": {"steps_per_execution": 4}}


class OwnNormalization(keras.layers.BatchNormalization):
    """Has moving statistics, whatever else it does."""


class Queue(keras.layers.Layer):
    """Keeps what it was last called on, as contrastive learning does."""

    def build(self, shape):
        self.kept = self.add_weight(shape=(BATCH, shape[-1]), trainable=False, name="kept")

    def call(self, x, training=False):
        if training:
            self.kept.assign(x)
        return x


@SIZES
@pytest.mark.parametrize("local", [False, True])
def test_weights_that_may_be_no_statistics(world, local, warnings_of_tfdist):
    """Are averaged, as layers of a user have moving means too, but not without a word; or each rank keeps its own."""
    queue = Queue()
    model = keras.Sequential([keras.Input((FEATURES,)), OwnNormalization(), queue, keras.layers.Dense(1)])
    optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(RATE))
    if local:
        optimizer.register_local_var(queue.kept)
    model.compile(optimizer, "mse")
    x = np.random.default_rng(tfdist.rank()).normal(size=(BATCH * 2, FEATURES)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(BATCH, drop_remainder=True)
    model.fit(data, epochs=2, verbose=0, callbacks=[DataParallel()])
    told = [line for line in warnings_of_tfdist if "the ranks have different values there" in line]
    assert all("queue/kept: the ranks" in line and "moving_" not in line for line in told)
    assert len(told) == (1 if world > 1 and tfdist.rank() == 0 and not local else 0)
    values = tfdist.allgather(tf.reshape(queue.kept.value, [1, -1]), name="kept").numpy()
    assert world == 1 or np.array_equal(values[0], values[1]) != local


def ordinary(**kw):
    return keras.layers.BatchNormalization(momentum=0.8, **kw)


def chain(new):
    return keras.Sequential(
        [
            keras.Input((FEATURES,)),
            new(),
            keras.layers.Dense(6, activation="tanh"),
            new(scale=False),
            keras.layers.Dense(2),
        ]
    )


def branches(new):
    """Of the same shapes and names: were the ranks to reduce them in different orders, only values would tell.

    One branch is a model of its own, with the layer inside a wrapper.
    """
    x = keras.Input((FEATURES,))
    inner = keras.Sequential(
        [
            keras.layers.Dense(8, activation="sigmoid"),
            keras.layers.Reshape((2, 4)),
            keras.layers.TimeDistributed(new(name="bn")),
            keras.layers.Flatten(),
        ]
    )
    left = new(name="bn")(keras.layers.Dense(8, activation="tanh")(x))
    right = inner(keras.layers.Rescaling(-0.5)(x))
    return keras.Model(x, keras.layers.Dense(2)(keras.layers.Multiply()([left, right])))


class Cell(keras.layers.Layer):
    """Normalises its state, in a loop over time."""

    def __init__(self, new):
        super().__init__()
        self.state_size, self.dense, self.norm = 3, keras.layers.Dense(3), new()

    def build(self, input_shape):
        self.dense.build(input_shape)
        self.norm.build((None, self.state_size))
        self.built = True

    def call(self, inputs, states, training=None):
        y = keras.ops.tanh(self.dense(inputs) + self.norm(states[0], training=training))
        return y, [y]


class Mapped(keras.layers.Layer):
    """One step of time after the other, in `tf.map_fn`."""

    def __init__(self, new):
        super().__init__()
        self.norm = new()

    def build(self, input_shape):
        self.norm.build((None, input_shape[-1]))
        self.built = True

    def call(self, x, training=None):
        steps = tf.transpose(x, [1, 0, 2])
        return tf.transpose(tf.map_fn(lambda step: self.norm(step, training=training), steps), [1, 0, 2])


class InBranch(keras.layers.Layer):
    """In a branch, and again in a function in a loop."""

    def __init__(self, new):
        super().__init__()
        self.first, self.second = new(), new()

    def build(self, input_shape):
        self.first.build(input_shape)
        self.second.build(input_shape)
        self.built = True

    def call(self, x, training=None):
        x = tf.cond(tf.reduce_sum(x) < 1e9, lambda: self.first(x, training=training), lambda: x)
        again = tf.function(lambda y: keras.ops.tanh(self.second(y, training=training)), autograph=False)
        return tf.while_loop(lambda i, _: i < 2, lambda i, y: [i + 1, again(y)], [0, x])[1]


def control_flow(new):
    return keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Reshape((FEATURES, 1)),
            keras.layers.RNN(Cell(new), return_sequences=True),
            Mapped(new),
            keras.layers.TimeDistributed(new()),
            keras.layers.Flatten(),
            InBranch(new),
            keras.layers.Dense(2),
        ]
    )


@pytest.fixture
def float64():
    """Rounding then decides nothing: what is compared is the mathematics."""
    before = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx(before[0])
    keras.config.set_dtype_policy(before[1])


def samples(rank, batch=BATCH):
    generator = np.random.default_rng(900 + rank)
    x = generator.normal(0.3 * rank, 1 + rank, size=(STEPS * batch, FEATURES)).astype("float32")
    return x, np.stack([np.sin(x[:, 0] + rank), x[:, 1] * x[:, 2]], axis=1).astype("float32")


def concatenated(world, batches=None):
    """Step s holds batch s of every rank, one after the other."""
    batches = batches or [BATCH] * world
    parts = [samples(rank, batch) for rank, batch in enumerate(batches)]
    steps = [
        [part[k][s * b : (s + 1) * b] for s in range(STEPS) for part, b in zip(parts, batches, strict=True)]
        for k in (0, 1)
    ]
    return np.concatenate(steps[0]), np.concatenate(steps[1])


def build(make, new, optimizer, seed, **kwargs):
    keras.utils.set_random_seed(seed)
    model = make(new)
    model.compile(optimizer, loss="mse", **kwargs)
    return model


def fit(model, x, y, batch=BATCH, epochs=2, **kwargs):
    model.fit(x, y, batch_size=batch, epochs=epochs, shuffle=False, verbose=0, **kwargs)


def reference(world, make, optimizer, epochs=2, batches=None, sample_weight=None):
    model = build(make, ordinary, optimizer, seed=0)
    batch = sum(batches or [BATCH] * world)
    fit(model, *concatenated(world, batches), batch, epochs, sample_weight=sample_weight)
    return model.get_weights()


@SIZES
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("execution", EXECUTION)
@pytest.mark.parametrize("kind", SYNCHRONIZED)
def test_plugin(world, kind, execution):
    """The reference is one process at the scaled rate."""
    optimizer = keras.optimizers.SGD(RATE, momentum=0.5)
    model = build(branches, SYNCHRONIZED[kind], optimizer, tfdist.rank(), **EXECUTION[execution])
    fit(model, *samples(tfdist.rank()), callbacks=[DataParallel()])
    assert_identical_on_ranks(model.get_weights())
    if tfdist.rank() == 0:
        expected = reference(world, branches, keras.optimizers.SGD(RATE * world, momentum=0.5))
        assert_close(model.get_weights(), expected, 1e-9)


@pytest.mark.slice("ranks")
@SIZES
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", SYNCHRONIZED)
def test_control_flow(world, kind):
    model = build(control_flow, SYNCHRONIZED[kind], keras.optimizers.SGD(RATE), tfdist.rank())
    fit(model, *samples(tfdist.rank()), epochs=1, callbacks=[DataParallel()])
    assert_identical_on_ranks(model.get_weights())
    if tfdist.rank() == 0:
        expected = reference(world, control_flow, keras.optimizers.SGD(RATE * world), epochs=1)
        assert_close(model.get_weights(), expected, 1e-8)


def test_reference_notices_ranks_that_are_alone(world):
    """With the ordinary layer on each rank the weights are others: the parity above must fail then."""
    model = build(chain, ordinary, keras.optimizers.SGD(RATE), tfdist.rank())
    fit(model, *samples(tfdist.rank()), callbacks=[DataParallel()])
    expected = reference(world, chain, keras.optimizers.SGD(RATE * world))
    with pytest.raises(AssertionError):
        assert_close(model.get_weights(), expected, 0.05)


@SIZES
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("accumulation", [{}, {"gradient_accumulation_steps": 2}], ids=["every_step", "accumulated"])
def test_explicit_pieces(world, accumulation):
    """`DistributedOptimizer` averages what the layer's gradient sums over the ranks: no factor is missing."""

    def make_optimizer():
        return keras.optimizers.Adam(0.01, **accumulation)

    model = build(branches, SYNCHRONIZED["ours"], tfdist.DistributedOptimizer(make_optimizer()), tfdist.rank())
    fit(model, *samples(tfdist.rank()), callbacks=[BroadcastGlobalVariablesCallback(0)])
    assert_identical_on_ranks(model.get_weights())
    if tfdist.rank() == 0:
        assert_close(model.get_weights(), reference(world, branches, make_optimizer()), 1e-8)


@SIZES
def test_batches_that_differ_by_rank(world):
    """Statistics are those of the concatenated batch; gradients are the mean of the ranks' means, as ever."""
    batches = [BATCH + 2 * rank for rank in range(world)]
    model = build(chain, SYNCHRONIZED["ours"], tfdist.DistributedOptimizer(keras.optimizers.SGD(RATE)), tfdist.rank())
    mine = batches[tfdist.rank()]
    fit(model, *samples(tfdist.rank(), mine), mine, callbacks=[BroadcastGlobalVariablesCallback(0)])
    assert_identical_on_ranks(model.get_weights())
    if tfdist.rank() == 0:
        weights = np.concatenate([np.full(b, sum(batches) / (world * b), "float32") for b in batches] * STEPS)
        optimizer = keras.optimizers.SGD(RATE)
        expected = reference(world, chain, optimizer, batches=batches, sample_weight=weights)
        assert_close(model.get_weights(), expected, 5e-4)


@SIZES
@pytest.mark.parametrize("kind", SYNCHRONIZED)
def test_mixed_precision(world, kind):
    """Moments are float32, so the statistics of the first layer are as exact as the cast of the input."""

    def make(new):
        policy = keras.dtype_policies.DTypePolicy("mixed_float16")
        return keras.Sequential(
            [keras.Input((FEATURES,)), new(dtype=policy), keras.layers.Dense(6, dtype=policy), keras.layers.Dense(2)]
        )

    inner = keras.optimizers.SGD(RATE)
    optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=256.0)
    model = build(make, SYNCHRONIZED[kind], optimizer, tfdist.rank())
    fit(model, *samples(tfdist.rank()), callbacks=[DataParallel(scale_learning_rate=False)])
    assert_identical_on_ranks(model.get_weights())
    if tfdist.rank() == 0:
        inner = keras.optimizers.SGD(RATE)
        expected = reference(world, make, keras.optimizers.LossScaleOptimizer(inner, initial_scale=256.0))
        assert_close(model.get_weights(), expected, 2e-2, floor=0.1)
        assert_close(model.layers[0].non_trainable_variables, expected[2:4], 1e-5)


@SIZES
def test_validation_and_later_fits(world):
    """Validation data of different length, a second fit with the function of the first, and one without a callback."""
    model = build(chain, SYNCHRONIZED["keras"], keras.optimizers.SGD(RATE), tfdist.rank())
    x, y = samples(tfdist.rank())
    plugin = DataParallel(scale_learning_rate=False)
    ours = slice(0, 4 + 4 * tfdist.rank())
    fit(model, x, y, epochs=1, validation_data=(x[ours], y[ours]), validation_batch_size=4, callbacks=[plugin])
    function = model.train_function
    fit(model, x, y, epochs=1, callbacks=[plugin])
    fit(model, x, y, epochs=1)
    assert model.train_function is function
    model.evaluate(x[ours], y[ours], batch_size=4, verbose=0)
    assert_identical_on_ranks(model.get_weights())
    if tfdist.rank() == 0:
        assert_close(model.get_weights(), reference(world, chain, keras.optimizers.SGD(RATE), epochs=3), 5e-4)


@pytest.mark.parametrize("execution", ["graph", "eager"])
def test_a_function_traced_without_the_plugin_is_dropped(world, execution):
    """The optimizer was distributed by the script, so nothing else would make the step anew."""
    optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(RATE))
    model = build(chain, SYNCHRONIZED["keras"], optimizer, 0, **EXECUTION[execution])
    start = model.get_weights()
    fit(model, *samples(tfdist.rank()), callbacks=[MetricAverageCallback()])
    model.set_weights(start)
    fit(model, *samples(tfdist.rank()), callbacks=[DataParallel(scale_learning_rate=False)])
    assert_identical_on_ranks(model.get_weights())
    if tfdist.rank() == 0:
        assert_close(model.get_weights(), reference(world, chain, keras.optimizers.SGD(RATE)), 5e-4)


class OwnMoments(keras.layers.BatchNormalization):
    def _moments(self, inputs, mask):
        return tf.zeros(inputs.shape[-1:]), tf.ones(inputs.shape[-1:])


class Failing(keras.layers.Layer):
    fails = False

    def call(self, x):
        if self.fails:
            raise RuntimeError("this step fails")
        return x


@SIZES
def test_layers_are_left_as_they_were(world):
    """After a fit, after one that failed, and on each rank alone outside a step; a subclass's own moments stay."""
    normalization, own, plain = SYNCHRONIZED["keras"](), OwnMoments(momentum=0.0, synchronized=True), ordinary()
    failing = Failing()
    layers = [keras.Input((FEATURES,)), normalization, own, plain, failing, keras.layers.Dense(2)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.SGD(RATE), loss="mse", run_eagerly=True)
    config = model.get_config()
    fit(model, *samples(tfdist.rank()), callbacks=[DataParallel()])
    failing.fails = True
    with pytest.raises(RuntimeError, match="this step fails"):
        fit(model, *samples(tfdist.rank()), callbacks=[DataParallel()])
    assert not any("_moments" in vars(layer) for layer in model.layers)
    assert model.get_config() == config
    assert np.array_equal(own.moving_mean, np.zeros(FEATURES))
    if tfdist.rank() == 0:
        normalization(samples(0)[0], training=True)
    tfdist.barrier(name="after a step on one rank")


def test_a_loaded_model_trains_over_all_ranks_again(world, shared_tmp_path):
    """Saved with our layer, loaded as Keras' own."""
    path = shared_tmp_path / "model.keras"
    model = build(chain, SYNCHRONIZED["ours"], keras.optimizers.SGD(RATE), tfdist.rank())
    fit(model, *samples(tfdist.rank()), epochs=1, callbacks=[DataParallel(checkpoint=path, scale_learning_rate=False)])
    loaded = keras.models.load_model(path)
    assert type(loaded.layers[0]) is keras.layers.BatchNormalization
    fit(loaded, *samples(tfdist.rank()), epochs=1, callbacks=[DataParallel(scale_learning_rate=False)])
    assert_identical_on_ranks(loaded.get_weights())
    if tfdist.rank() == 0:
        assert_close(loaded.get_weights(), reference(world, chain, keras.optimizers.SGD(RATE)), 5e-4)


def test_the_context_outside_fit(world):
    """For a training loop of one's own around Keras' layer."""
    layer = SYNCHRONIZED["keras"]()
    model = keras.Sequential([keras.Input((1,)), layer])
    x = tf.fill([2, 1], 10.0 * tfdist.rank())
    with synchronized(model), synchronized(model):
        model(x, training=True)
    assert "_moments" not in vars(layer)
    assert_close([layer.moving_mean], [[0.2 * 10.0 * (world - 1) / 2]], 1e-5)
