"""Data sharded with a global batch: training is that of one process on such batches, for any number of ranks."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from interruption import Interrupted, StopAt

import tfdist
from tfdist.callbacks import BackupAndRestore, DataParallel, LearningRateWarmupCallback
from tfdist.callbacks.fit.model_hook import ModelHook
from tfdist.errors import ConfigError, MismatchError
from tfdist.testing import assert_close, assert_identical_on_ranks

GLOBAL, ROWS, EPOCHS, RATE = 64, 64 * 5 + 7, 3, 0.02
OPTIMIZERS = {
    "momentum": lambda: keras.optimizers.SGD(RATE, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(RATE, global_clipnorm=0.5),
    "schedule": lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(RATE, 3, 0.8)),
}
NORMALIZATIONS = {
    "none": lambda: keras.layers.Activation("tanh"),
    "layer": lambda: tfdist.SyncBatchNormalization(momentum=0.9),
    "keras": lambda: keras.layers.BatchNormalization(momentum=0.9, synchronized=True),
}


def samples():
    generator = np.random.default_rng(5)
    x = generator.normal(size=(ROWS, 4)).astype("float32")
    return x, (np.sin(x @ generator.normal(size=(4, 1))) + 0.1 * x[:, :1]).astype("float32")


def shuffled():
    tf.random.set_seed(11)
    return tf.data.Dataset.from_tensor_slices(samples()).shuffle(ROWS, seed=2)


def new_model(normalization=None, optimizer="momentum", **setting):
    """Without a bias before batch normalization: its gradient is 0, so rounding would decide on Adam's steps."""
    keras.utils.set_random_seed(3)
    dense = keras.layers.Dense(6, use_bias=normalization is None)
    middle = [dense, normalization or NORMALIZATIONS["none"](), keras.layers.Activation("tanh")]
    model = keras.Sequential([keras.Input((4,)), *middle, keras.layers.Dense(1)])
    model.compile(OPTIMIZERS[optimizer](), "mse", metrics=["mae"], **setting)
    return model


def one_process(model, callbacks=(), epochs=EPOCHS):
    """The history of ordinary training. Rank by rank the same, without a collective."""
    data = shuffled().batch(GLOBAL, drop_remainder=True)
    checked = tf.data.Dataset.from_tensor_slices(samples()).batch(GLOBAL, drop_remainder=True)
    return model.fit(data, validation_data=checked, epochs=epochs, verbose=0, callbacks=list(callbacks)).history


def on_ranks(model, *callbacks, epochs=EPOCHS, **arguments):
    data = tfdist.shard(shuffled(), global_batch=GLOBAL).prefetch(2)
    checked = tfdist.shard(samples(), global_batch=GLOBAL)
    callbacks = [DataParallel(**arguments), *callbacks]
    return model.fit(data, validation_data=checked, epochs=epochs, verbose=0, callbacks=callbacks).history


def assert_same_curves(found, expected):
    """To rounding, from the first epoch to the last."""
    assert set(found) == set(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=2e-5, err_msg=name)


class Rates(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_begin(self, batch, logs=None):
        self.seen.append(float(self.model.optimizer.learning_rate))


@pytest.mark.ranks(1, 2, 3, 4)
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_curves_and_weights_are_those_of_one_process(world, optimizer, normalization):
    model = new_model(NORMALIZATIONS[normalization](), optimizer)
    history = on_ranks(model)
    assert_identical_on_ranks([np.asarray(each) for each in (*model.weights, *model.optimizer.variables)])
    plain = NORMALIZATIONS["none"]() if normalization == "none" else keras.layers.BatchNormalization(momentum=0.9)
    expected = new_model(plain, optimizer)
    assert_same_curves(history, one_process(expected))
    assert history["loss"][-1] < 0.9 * history["loss"][0]
    assert int(model.optimizer.iterations) == 5 * EPOCHS
    assert_close(model.get_weights(), expected.get_weights())


@pytest.mark.ranks(1, 2, 3, 4)
@pytest.mark.parametrize("setting", [{"steps_per_execution": 2}, {"run_eagerly": True}], ids=str)
def test_execution(world, setting):
    model, expected = new_model(**setting), new_model()
    assert_same_curves(on_ranks(model), one_process(expected))
    assert_close(model.get_weights(), expected.get_weights())


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("setting", [{}, {"max_local_batch": 2}], ids=str)
def test_losses_of_several_outputs(world, setting):
    """With 5 samples in a step, of which no rank has as many as another."""
    x, y = (part[:40] for part in samples())

    def trained(data, *callbacks):
        keras.utils.set_random_seed(3)
        inputs = keras.Input((4,))
        outputs = {"a": keras.layers.Dense(1, name="a")(inputs), "b": keras.layers.Dense(1, name="b")(inputs)}
        model = keras.Model(inputs, outputs)
        model.compile(keras.optimizers.SGD(RATE), "mse")
        data = data.map(lambda x, y: (x, {"a": y, "b": 2 - y}))
        return model.fit(data, epochs=2, verbose=0, callbacks=list(callbacks)).history

    whole = tf.data.Dataset.from_tensor_slices((x, y))
    found = trained(tfdist.shard(whole, global_batch=5, **setting), DataParallel())
    assert_same_curves(found, trained(whole.batch(5)))


@pytest.mark.ranks(3)
def test_reference_notices_ranks_of_equal_weight(world, monkeypatch):
    """What the tests above would see if the ranks, with 21, 21 and 22 samples, had equal weight."""
    model, expected = new_model(), new_model()
    monkeypatch.setattr(DataParallel, "_weigh_where_uneven", lambda self: None)
    on_ranks(model)
    one_process(expected)
    with pytest.raises(AssertionError):
        assert_close(model.get_weights(), expected.get_weights())


@pytest.mark.ranks(1, 2, 3)
def test_rate_is_not_scaled(world, warnings_of_tfdist):
    rates = Rates()
    model = new_model()
    on_ranks(model, rates, epochs=1)
    assert rates.seen == pytest.approx([RATE] * 5)
    # The same model and another fit, each by its own data.
    own = tf.data.Dataset.from_tensor_slices(samples()).batch(8)
    model.fit(tfdist.shard(own), epochs=1, verbose=0, callbacks=[DataParallel(), rates])
    assert rates.seen[5:] == pytest.approx([RATE * world] * (len(rates.seen) - 5))
    assert len(rates.seen) > 5
    on_ranks(model, rates, epochs=1)
    assert rates.seen[-5:] == pytest.approx([RATE] * 5)
    assert not [line for line in warnings_of_tfdist if "rate" in line]


def test_rate_of_callbacks_that_were_made_before_fit(world):
    model, rates = new_model(), Rates()
    made = keras.callbacks.CallbackList([DataParallel(), rates], model=model, add_history=True, steps=5, epochs=1)
    model.fit(tfdist.shard(shuffled(), global_batch=GLOBAL), verbose=0, callbacks=made)
    assert rates.seen == pytest.approx([RATE] * 5)


def test_data_that_does_not_show_its_global_batch(world, warnings_of_tfdist):
    """Its rate is multiplied, as by default, but not without a word."""
    data = tfdist.shard(shuffled(), global_batch=GLOBAL)
    hidden = tf.data.Dataset.from_generator(lambda: iter(data), output_signature=data.element_spec)
    hidden = hidden.apply(tf.data.experimental.assert_cardinality(5))
    new_model().fit(hidden, verbose=0, callbacks=[DataParallel()])
    told = [line for line in warnings_of_tfdist if f"multiplied by the number of ranks ({world})" in line]
    assert len(told) == (tfdist.rank() == 0)
    assert all("scale_learning_rate=False" in line for line in told)


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("how", ["plugin", "schedule", "callback"])
def test_warmup_is_the_same_for_any_number_of_ranks(world, how):
    rates = Rates()
    model = new_model()
    if how == "schedule":
        model.compile(keras.optimizers.SGD(keras.optimizers.schedules.PolynomialDecay(RATE, 1000, RATE)), "mse")
    by_hand = [LearningRateWarmupCallback(RATE, warmup_epochs=2)] if how == "callback" else []
    data = tfdist.shard(shuffled(), global_batch=GLOBAL)
    plugin = DataParallel(warmup_epochs=0 if by_hand else 2)
    model.fit(data, epochs=EPOCHS, verbose=0, callbacks=[plugin, *by_hand, rates])
    assert rates.seen == pytest.approx([RATE * min(1, (step + 1) / 11) for step in range(15)])


@pytest.mark.ranks(1, 3)
def test_step_is_traced_once(world):
    """Ranks have 21 or 22 samples, each another size, and nothing is traced for a size."""
    traces = []

    class Noting(keras.Sequential):
        def train_step(self, data):
            traces.append(data[0].shape.as_list())
            return super().train_step(data)

    model = Noting(new_model().layers)
    model.compile("sgd", "mse")
    data = tfdist.shard(shuffled(), global_batch=GLOBAL)
    assert {len(x) for x, _ in data} == {(21, 21, 22)[tfdist.rank()] if world == 3 else 64}
    model.fit(data, verbose=0, callbacks=[DataParallel()])
    before = len(traces)
    model.fit(data, epochs=2, verbose=0, callbacks=[DataParallel()])
    assert len(traces) == before <= 2  # TensorFlow traces a function twice that creates variables
    assert traces[0] == [None, 4]


REGROUPED = {
    "batch": lambda data: data.unbatch().batch(4),
    "shuffle": lambda data: data.shuffle(3, seed=1),
    "filter": lambda data: data.filter(lambda x, y: True),
    "rebatch": lambda data: data.rebatch(3),
}


@pytest.mark.parametrize("case", REGROUPED)
def test_regrouped_data_is_refused(world, case):
    data = REGROUPED[case](tfdist.shard(shuffled(), global_batch=GLOBAL))
    with pytest.raises(ConfigError, match=r"regrouped after tfdist.shard\(..., global_batch=64\)"):
        new_model().fit(data.prefetch(1), verbose=0, callbacks=[DataParallel()])


def test_what_may_follow(world):
    data = tfdist.shard(shuffled(), global_batch=GLOBAL)
    data = data.map(lambda x, y: (2 * x, y)).cache().repeat(2).skip(1).take(7).prefetch(1)
    model = new_model()
    model.fit(data, verbose=0, callbacks=[DataParallel()])
    assert int(model.optimizer.iterations) == 7


def test_losses_that_are_sums_are_refused(world):
    model = new_model()
    model.compile("sgd", keras.losses.MeanSquaredError(reduction="sum"))
    with pytest.raises(ConfigError, match=r"MeanSquaredError has reduction='sum'"):
        on_ranks(model)


def test_ranks_that_fit_other_data(world):
    data = tfdist.shard(shuffled(), global_batch=GLOBAL)
    mine = data if tfdist.rank() == 0 else shuffled().batch(8).take(5)
    with pytest.raises(MismatchError, match=r"the global batch of tfdist.shard is 64 on rank 0; none on rank"):
        new_model().fit(mine, verbose=0, callbacks=[DataParallel()])


def counted(places, mapped):
    """Samples in an order that every process finds again, looked up by a map that notes what it reads."""
    x, y = samples()

    def read(place):
        places.append(int(place))
        return x[place], y[place]

    def look_up(place):
        found = tf.numpy_function(read, [place], [tf.float32, tf.float32])
        return tf.ensure_shape(found[0], [4]), tf.ensure_shape(found[1], [1])

    rows = tf.data.Dataset.range(ROWS).shuffle(ROWS, seed=2, reshuffle_each_iteration=False)
    options = tf.data.Options()
    options.autotune.enabled = False  # as in test_resumption.py
    rows = rows.with_options(options)
    return rows.map(look_up) if mapped == "one by one" else rows.map(look_up, num_parallel_calls=2)


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("mapped", ["one by one", "in parallel"])
@pytest.mark.parametrize("at_once", [1, 2])
def test_resuming_reads_no_sample_that_was_trained_on(world, shared_tmp_path, mapped, at_once):
    """Interrupted after batch 3 of epoch 1. Steps that Keras takes in pairs do not divide an epoch of 5."""
    tf.random.set_seed(11)

    def fit(model, reads, *callbacks):
        backup = BackupAndRestore(shared_tmp_path / "backup", save_freq=at_once)
        data = tfdist.shard(counted(reads, mapped), global_batch=GLOBAL).prefetch(1)
        return model.fit(data, epochs=EPOCHS, verbose=0, callbacks=[DataParallel(), backup, *callbacks]).history

    setting, read_in_all, reads, begun = {"steps_per_execution": at_once}, [], [], []
    whole = fit(expected := new_model(**setting), read_in_all)
    with pytest.raises(Interrupted):
        fit(new_model(**setting), [], StopAt(1, 3))
    note = keras.callbacks.LambdaCallback(on_train_begin=lambda logs: begun.append(ModelHook.of(model).resume_batch))
    resumed = fit(model := new_model(**setting), reads, note)
    assert_close(model.get_weights(), expected.get_weights())
    assert_identical_on_ranks(model.get_weights())
    for name, values in whole.items():
        np.testing.assert_allclose(resumed[name], values[1:], rtol=1e-5, err_msg=name)
    share = len(range(GLOBAL * tfdist.rank() // world, GLOBAL * (tfdist.rank() + 1) // world))
    assert len(read_in_all) == 5 * EPOCHS * share
    (skipped,) = begun
    assert skipped in {1: (3, 4), 2: (2, 4)}[at_once]  # by what the thread that writes had begun
    assert len(reads) == (10 - (skipped if at_once == 1 else 0)) * share


@pytest.mark.ranks(2)
def test_arrays_resume_far_into_an_epoch(world, shared_tmp_path):
    """At batch 9,000 of 10,000; the epoch after it is a whole one."""
    x = np.arange(40_000, dtype="float32").reshape(20_000, 2) / 40_000

    def fit(*callbacks):
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(1e-3), "mse", steps_per_execution=500)
        data = tfdist.shard((x, x[:, :1]), global_batch=2)
        backup = BackupAndRestore(shared_tmp_path / "backup", save_freq=500)
        model.fit(data, epochs=2, verbose=0, callbacks=[DataParallel(), backup, *callbacks])
        return model

    expected = fit()
    with pytest.raises(Interrupted):
        fit(StopAt(0, 9_499))
    assert_close(fit().get_weights(), expected.get_weights())


class Recorder(keras.Model):
    """Keeps the rows of each step, in their order."""

    def __init__(self):
        super().__init__()
        self.dense, self.seen = keras.layers.Dense(1), []
        self.compile("sgd", "mse", run_eagerly=True)

    def call(self, rows):
        if tf.executing_eagerly():
            self.seen += rows[:, 0].numpy().astype(int).tolist()
        return self.dense(rows)


def rows_in_order(fit, epochs=2):
    """The rows of each epoch, in the order in which this rank trains on them."""
    model = Recorder()
    model(np.zeros((1, 1), "float32"))
    model.seen.clear()
    fit(model, epochs=epochs, verbose=0, callbacks=[DataParallel()])
    rows = len(model.seen) // epochs
    return [model.seen[epoch * rows :][:rows] for epoch in range(epochs)]


NUMBERS = np.arange(24.0, dtype="float32")[:, None]


@pytest.mark.ranks(2, 3)
def test_arrays_are_warned_of_once_where_nothing_shuffles_them(world, warnings_of_tfdist):
    data = tfdist.shard((NUMBERS, NUMBERS), global_batch=12)
    checked = tfdist.shard((NUMBERS, NUMBERS), global_batch=12)
    first, second = rows_in_order(lambda model, **given: model.fit(data.prefetch(1), validation_data=checked, **given))
    assert first == second  # the order of the epochs, of this rank
    found = [line for line in warnings_of_tfdist if "in their stored order in every epoch" in line]
    assert len(found) == (tfdist.rank() == 0)
    assert all("from_tensor_slices((x, y)).shuffle(len(x), seed=1)" in line for line in found)
    rows_in_order(lambda model, **given: model.fit(data, **given))
    assert len(warnings_of_tfdist) == len(found)


@pytest.mark.ranks(2)
def test_arrays_that_shall_stay_in_order_are_not_warned_of(world, warnings_of_tfdist):
    data = tfdist.shard((NUMBERS, NUMBERS), global_batch=12)
    rows_in_order(lambda model, **given: model.fit(data, shuffle=False, **given))
    tf.random.set_seed(11)
    samples = tf.data.Dataset.from_tensor_slices((NUMBERS, NUMBERS)).shuffle(24, seed=1)
    training = tfdist.shard(samples, global_batch=12)
    first, second = rows_in_order(lambda model, **given: model.fit(training, validation_data=data, **given))
    assert first != second
    assert warnings_of_tfdist == []


@pytest.mark.ranks(1, 2)
def test_arrays_without_a_global_batch_are_shuffled_by_keras(world, warnings_of_tfdist):
    x, y = tfdist.shard((NUMBERS, NUMBERS))
    for epoch in rows_in_order(lambda model, **given: model.fit(x, y, batch_size=4, **given)):
        assert sorted(epoch) == x[:, 0].tolist() != epoch
    assert warnings_of_tfdist == []


@pytest.mark.ranks(1)
def test_arrays_on_one_rank_are_warned_of_by_keras():
    data = tfdist.shard((NUMBERS, NUMBERS), global_batch=12)
    with pytest.warns(UserWarning, match="`shuffle=True` was passed, but will be ignored"):
        rows_in_order(lambda model, **given: model.fit(data, **given))
