"""Data sharded with `max_local_batch`: the same training as without, with at most so many samples at once."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.callbacks import DataParallel, MetricAverageCallback
from tfdist.callbacks.fit import micro_batch
from tfdist.errors import ConfigError
from tfdist.testing import assert_close, assert_identical_on_ranks

# 50 samples of 1, 2 and 3 ranks: 50; 25 and 25; 16, 17 and 17. Parts of at most 8: 7 x 7 or 8; 4 x 6 or 7; 5 and 6.
GLOBAL, ROWS, LIMIT, EPOCHS, RATE = 50, 50 * 3 + 9, 8, 2, 0.05
WORDS = 30


class Seen(keras.layers.Layer):
    """Notes how many samples go through it at once in training."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def call(self, inputs, training=False):
        def note(size):
            self.sizes.append(int(size))
            return size

        if not training:
            return inputs
        with tf.control_dependencies([tf.numpy_function(note, [tf.shape(inputs)[0]], tf.int32)]):
            return tf.identity(inputs)


def dense(optimizer, loss="mse", dtype=None, **setting):
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dense(6, activation="tanh", dtype=dtype), keras.layers.Dense(1, dtype=dtype)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile(optimizer, loss, metrics=["mae"], weighted_metrics=["mse"], **setting)
    return model


def branches(optimizer):
    """A table with sparse gradients, ragged and sparse inputs, a penalty, and a weight that gets no gradient."""
    keras.utils.set_random_seed(3)
    word = keras.Input((), dtype="int32", name="word")
    x = keras.Input((4,), name="x")
    flags = keras.Input((WORDS,), sparse=True, name="flags")
    unused = keras.layers.Dense(2, name="unused")
    unused.build((4,))
    penalty = keras.regularizers.L2(0.01)
    found = keras.layers.Embedding(WORDS, 3, name="table")(word)
    joined = keras.layers.Concatenate()([found, x, keras.layers.Dense(2, kernel_regularizer=penalty)(flags)])

    class Model(keras.Model):
        def __init__(self, *args, **arguments):
            super().__init__(*args, **arguments)
            self.unused = unused

    model = Model([word, x, flags], {"y": keras.layers.Dense(1)(joined), "z": keras.layers.Dense(2)(joined)})
    model.compile(optimizer, {"y": "mse", "z": "mae"}, loss_weights={"y": 1.0, "z": 0.5}, metrics={"y": ["mae"]})
    return model


def samples(kind="dense", dtype="float32"):
    generator = np.random.default_rng(5)
    x = generator.normal(size=(ROWS, 4)).astype(dtype)
    y = (np.sin(x @ generator.normal(size=(4, 1))) + 0.1 * x[:, :1]).astype(dtype)
    if kind == "weighted":
        return x, y, generator.uniform(0.1, 3, size=ROWS).astype(dtype)
    if kind == "branches":
        word = generator.integers(0, WORDS, size=ROWS).astype("int32")
        flags = tf.sparse.from_dense((generator.random((ROWS, WORDS)) < 0.1).astype("float32"))
        return {"word": word, "x": x, "flags": flags}, {"y": y, "z": np.concatenate([y, -y], axis=1)}
    return x, y


def train(model, limit, *callbacks, kind="dense", dtype="float32", epochs=EPOCHS, validation=True):
    """The history of a fit, the samples in an order that every fit finds again."""
    tf.random.set_seed(11)
    data = tf.data.Dataset.from_tensor_slices(samples(kind, dtype)).shuffle(ROWS, seed=2)
    data = tfdist.shard(data, global_batch=GLOBAL, max_local_batch=limit).prefetch(2)
    checked = tf.data.Dataset.from_tensor_slices(samples(kind, dtype))
    checked = {"validation_data": tfdist.shard(checked, global_batch=GLOBAL)} if validation else {}
    callbacks = [DataParallel(), *callbacks]
    return model.fit(data, epochs=epochs, verbose=0, callbacks=callbacks, **checked).history


def local_batch(world):
    return GLOBAL * (tfdist.rank() + 1) // world - GLOBAL * tfdist.rank() // world


def calls():
    return {name: cost["calls"] for name, cost in tfdist.metrics()["collectives"].items()}


def called_in(train):
    """The collectives of a training, and what it returned."""
    before = calls()
    result = train()
    return {name: count - before.get(name, 0) for name, count in calls().items()}, result


CASES = {
    "momentum": lambda: (dense(keras.optimizers.SGD(RATE, momentum=0.9)), {}),
    "clipped": lambda: (dense(keras.optimizers.Adam(RATE, global_clipnorm=0.1)), {}),
    "clipped each": lambda: (dense(keras.optimizers.SGD(RATE, clipnorm=0.05)), {}),
    "scaled": lambda: (dense(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(RATE), 2.0**4)), {}),
    "scaled by factor": lambda: (dense(keras.optimizers.SGD(RATE, loss_scale_factor=64.0)), {}),
    "schedule": lambda: (dense(keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(RATE, 2, 0.5))), {}),
    "two at once": lambda: (dense(keras.optimizers.SGD(RATE, momentum=0.9), steps_per_execution=2), {}),
    "eager": lambda: (dense(keras.optimizers.Adam(RATE), run_eagerly=True), {}),
    "weighted": lambda: (dense(keras.optimizers.SGD(RATE)), {"kind": "weighted"}),
    "huber": lambda: (dense(keras.optimizers.SGD(RATE), keras.losses.Huber(0.2)), {}),
    "branches": lambda: (branches(keras.optimizers.SGD(RATE, momentum=0.9)), {"kind": "branches"}),
    "distributed": lambda: (
        branches(tfdist.DistributedOptimizer(keras.optimizers.SGD(RATE), sparse_as_dense=True)),
        {"kind": "branches"},
    ),
}


class Ends(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.batches = []

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append(batch)


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("case", CASES)
def test_training_is_that_without(world, case):
    expected, how = CASES[case]()
    begun, ends = expected.get_weights(), (Ends(), Ends())
    reductions, history = called_in(lambda: train(expected, None, ends[0], **how))
    model, how = CASES[case]()
    called, found = called_in(lambda: train(model, LIMIT, ends[1], **how))
    assert called == reductions
    assert ends[1].batches == ends[0].batches
    assert int(model.optimizer.iterations) == 3 * EPOCHS
    assert_identical_on_ranks([np.asarray(each) for each in (*model.weights, *model.optimizer.variables)])
    assert_close([*model.weights, *model.optimizer.variables], [*expected.weights, *expected.optimizer.variables])
    assert set(found) == set(history)
    for name, values in history.items():
        np.testing.assert_allclose(found[name], values, rtol=2e-5, err_msg=name)
    with pytest.raises(AssertionError):
        assert_close(model.get_weights(), begun)


@pytest.fixture
def _float64():
    """Keras' losses are in this type, whatever that of a layer."""
    keras.config.set_floatx("float64")
    yield
    keras.config.set_floatx("float32")


@pytest.mark.usefixtures("_float64")
@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("limit", [1, 5, LIMIT, 16])
def test_float64_is_the_same_to_its_rounding(world, limit):
    expected, model = (dense(keras.optimizers.SGD(RATE, momentum=0.9)) for _ in range(2))
    train(expected, None, dtype="float64", validation=False)
    train(model, limit, dtype="float64", validation=False)
    assert_close(model.get_weights(), expected.get_weights(), relative=1e-12)
    assert model.get_weights()[0].dtype == np.float64


@pytest.mark.usefixtures("_float64")
@pytest.mark.ranks(1, 2, 3)
def test_reference_notices_parts_of_equal_weight(world, monkeypatch):
    """What the tests above would see if parts of unequal sizes counted alike."""
    expected, model = (dense(keras.optimizers.SGD(RATE, momentum=0.9)) for _ in range(2))
    train(expected, None, dtype="float64", validation=False)
    whole = micro_batch.MicroBatches.part
    monkeypatch.setattr(
        micro_batch.MicroBatches, "part", lambda parts, number: (whole(parts, number)[0], 1 / parts.count)
    )
    train(model, LIMIT, dtype="float64", validation=False)
    with pytest.raises(AssertionError):
        assert_close(model.get_weights(), expected.get_weights())


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("setting", [{}, {"steps_per_execution": 3}, {"run_eagerly": True}], ids=str)
def test_no_more_samples_at_once(world, setting):
    """And all that are outside `fit`, or in a later fit of other data."""
    seen = Seen()
    model = keras.Sequential([keras.Input((4,)), seen, keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(RATE), "mse", **setting)
    train(model, LIMIT, epochs=1, validation=False)
    mine = local_batch(world)
    count = -(-mine // LIMIT)
    bounds = [number * mine // count for number in range(count + 1)]
    assert seen.sizes == [end - begin for begin, end in itertools.pairwise(bounds)] * 3
    seen.sizes.clear()
    x, y = samples()
    model.train_on_batch(x[:20], y[:20])
    train(model, None, epochs=1, validation=False)
    assert seen.sizes == [20, mine, mine, mine]


@pytest.mark.ranks(1, 3)
def test_infinity_in_one_part_skips_the_step_on_all_ranks(world):
    """The scale is halved once, and no variable of any rank changes."""
    x, y = samples()
    x[GLOBAL - 1] = np.inf  # the last sample of the last rank
    model = dense(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(RATE), 2.0**4))
    data = tfdist.shard((x[:GLOBAL], y[:GLOBAL]), global_batch=GLOBAL, max_local_batch=LIMIT)
    before = model.get_weights()
    model.fit(data, verbose=0, callbacks=[DataParallel()])
    assert_close(model.get_weights(), before, relative=0)
    assert float(model.optimizer.dynamic_scale) == 2.0**3
    assert int(model.optimizer.iterations) == 0


@pytest.mark.ranks(1, 3)
def test_mixed_precision(world):
    """Half the digits, so only what parts of another weight would change is noticed."""

    def new_model():
        model = dense(keras.optimizers.SGD(RATE, momentum=0.9), dtype="mixed_float16")
        assert model.layers[0].compute_dtype == "float16"
        return model

    expected, model = new_model(), new_model()
    train(expected, None, validation=False)
    train(model, LIMIT, validation=False)
    assert_close(model.get_weights(), expected.get_weights(), relative=5e-3, floor=0.1)


class Counting(keras.Sequential):
    """Counts how many times its training step is traced."""

    traces = 0

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        self.traces += bool(training)
        return super().compute_loss(x, y, y_pred, sample_weight, training=training)


@pytest.mark.ranks(1, 3)
def test_limits_and_sizes_are_not_traced(world):
    model = Counting([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(RATE), "mse")
    train(model, LIMIT, validation=False)
    before = model.traces
    train(model, 3, validation=False)
    data = tfdist.shard(samples(), global_batch=20, max_local_batch=1)
    model.fit(data, verbose=0, callbacks=[DataParallel()])
    assert model.traces == before <= 3  # those of the first step, which makes variables
    train(model, None, epochs=1, validation=False)
    assert model.traces > before


class OwnStep(keras.Sequential):
    def train_step(self, data):
        return super().train_step(data)


def normalized(layer):
    model = keras.Sequential([keras.Input((4,)), layer, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def own_step(model):
    model.train_step = lambda data, original=model.train_step: original(data)
    return model


def in_float8(model):
    model.layers[0].kernel.overwrite_with_gradient = True
    return model


def subclassed():
    model = OwnStep([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


REFUSED = {
    "own step": (subclassed, "train_step of OwnStep is not that of Keras.* Override compute_loss"),
    "own step of the instance": (lambda: own_step(dense("sgd")), "train_step of Sequential is not that of Keras"),
    "XLA": (lambda: dense("sgd", jit_compile=True), "jit_compile is True.* Compile the model with jit_compile=False"),
    "accumulation": (
        lambda: dense(keras.optimizers.SGD(RATE, gradient_accumulation_steps=2)),
        "gradient_accumulation_steps.* Set it to None",
    ),
    "statistics": (lambda: normalized(tfdist.SyncBatchNormalization(name="norm")), "layer norm normalises over"),
    "statistics of Keras": (
        lambda: normalized(keras.layers.BatchNormalization(synchronized=True, name="norm")),
        "layer norm normalises over.*GroupNormalization",
    ),
    "float8": (lambda: in_float8(dense("sgd")), "quantized to float8"),
}


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_taken_in_parts_is_refused(world, case):
    make, message = REFUSED[case]
    with pytest.raises(ConfigError, match=f"max_local_batch={LIMIT} lets a step.*{message}.*, or omit max_local_batch"):
        train(make(), LIMIT, validation=False)
    if case != "float8":
        train(make(), None, epochs=1, validation=False)  # without it they are as good as before


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("limit", [LIMIT, GLOBAL])
def test_a_strategy_is_refused(world, limit):
    """Where the batch is too large, Keras has read it before anything could be refused."""
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        model = dense("sgd")
    message = "without a tf.distribute strategy|under OneDeviceStrategy.*Remove the strategy"
    with pytest.raises(ConfigError if limit == GLOBAL else tf.errors.OpError, match=message):
        train(model, limit, validation=False)


def test_ordinary_normalization_has_the_statistics_of_a_part(world):
    model = normalized(keras.layers.BatchNormalization(momentum=0.5))
    x, y = samples()
    data = tfdist.shard((x[:GLOBAL], y[:GLOBAL]), global_batch=GLOBAL, max_local_batch=LIMIT)
    model.fit(data, verbose=0, callbacks=[DataParallel()])
    mean, mine = np.zeros(4), local_batch(world)
    first, count = GLOBAL * tfdist.rank() // world, -(-mine // LIMIT)
    for number in range(count):
        begin, end = (first + each * mine // count for each in (number, number + 1))
        mean = 0.5 * mean + 0.5 * x[begin:end].mean(0)
    by_rank = tfdist.allgather_object(mean, name="means")
    assert_close([model.layers[0].moving_mean], [np.mean(by_rank, axis=0)])


@pytest.mark.ranks(1, 2)
def test_validation_data_is_refused(world):
    x, y = samples()
    whole = tfdist.shard((x, y), global_batch=GLOBAL, max_local_batch=LIMIT)
    for data in (whole, tfdist.shard((x, y), global_batch=GLOBAL)):
        with pytest.raises(ConfigError, match=r"validation data is sharded with max_local_batch.*\.batch\(32\)"):
            dense("sgd").fit(data, validation_data=whole, verbose=0, callbacks=[DataParallel()])


READERS = {
    "loop": lambda model, data: list(data),
    "loop, mapped": lambda model, data: list(data.map(lambda x, y: x).prefetch(1)),
    "fit without callbacks": lambda model, data: model.fit(data, verbose=0),
    "fit with others": lambda model, data: model.fit(data, verbose=0, callbacks=[MetricAverageCallback()]),
    "evaluate": lambda model, data: model.evaluate(data, verbose=0),
    "predict": lambda model, data: model.predict(data, verbose=0),
    "generator": lambda model, data: model.fit(
        tf.data.Dataset.from_generator(lambda: iter(data), output_signature=data.element_spec),
        verbose=0,
        callbacks=[DataParallel()],
    ),
}


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("reader", READERS)
def test_who_does_not_split_gets_no_large_batch(world, reader):
    """Before a fit that splits and after it; a batch that is not too large is anybody's."""
    model, mine = dense("sgd"), local_batch(world)
    data = tfdist.shard(samples(), global_batch=GLOBAL, max_local_batch=mine - 1)
    told = rf"max_local_batch={mine - 1}\), so nothing else may read.*\[{mine}\]"
    for _ in range(2):
        with pytest.raises(tf.errors.OpError, match=told):
            READERS[reader](model, data)
        model.fit(data, verbose=0, callbacks=[DataParallel()])
    READERS[reader](model, tfdist.shard(samples(), global_batch=GLOBAL, max_local_batch=mine))


@pytest.mark.ranks(1, 2)
def test_what_belongs_to_all_samples_is_refused(world):
    data = tfdist.shard(samples(), global_batch=GLOBAL, max_local_batch=LIMIT)
    with pytest.raises(ConfigError, match=r"one row for each sample; received shape \(\)"):
        dense("sgd").fit(data.map(lambda x, y: (x, y, 1.0)), verbose=0, callbacks=[DataParallel()])
