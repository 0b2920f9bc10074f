"""More about `BackupAndRestore`: what decides the bits of a resumed training, and what must not be resumed.

`test_backup_and_restore.py` has the ordinary cases; here are rates, places in the list, and what differs between runs.
"""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from interruption import Interrupted, StopAt

import tfdist
from tfdist.callbacks import BackupAndRestore, BroadcastGlobalVariablesCallback, DataParallel, MetricAverageCallback
from tfdist.callbacks.store import snapshot, writer
from tfdist.testing.parity import assert_identical_on_ranks

FEATURES, BATCH, STEPS, EPOCHS = 4, 4, 6, 3


# Each test trains three times; tests whose answer depends on the number of ranks say more sizes.
pytestmark = pytest.mark.ranks(2)


class Steps(keras.callbacks.Callback):
    """Epoch and batch of every step that was taken with its rate, and the epochs that ended."""

    def __init__(self):
        super().__init__()
        self.taken, self.rates, self.ended = [], [], []

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        self.before = int(self.model.optimizer.iterations)

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations) > self.before:
            self.taken.append((self.epoch, batch))
            self.rates.append(float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)))

    def on_epoch_end(self, epoch, logs=None):
        self.ended.append(epoch)


def dataset(rank, steps=STEPS):
    generator = np.random.default_rng(30 + rank)
    x = generator.normal(size=(steps * BATCH, FEATURES)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, np.sin(x[:, :1] + rank).astype("float32"))).batch(BATCH)
    return data.with_options(without_autotune())


def without_autotune():
    """TensorFlow's thread for tuning may hold up the end of an iterator that is given up early for half a minute."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return options


def momentum(**kwargs):
    return keras.optimizers.SGD(0.05, momentum=0.9, **kwargs)


OPTIMIZERS = {
    "momentum": momentum,
    "adam_ema": lambda: keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.9),
    "accumulated": lambda: momentum(gradient_accumulation_steps=2),
    "accumulated_adam": lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=4),
    "loss_scale": lambda: keras.optimizers.LossScaleOptimizer(momentum(), initial_scale=8.0, dynamic_growth_steps=4),
    "schedule": lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.7), momentum=0.9),
}


def new_model(optimizer, seed, dropout=0.0, **kwargs):
    keras.utils.set_random_seed(seed)
    layers = [keras.Input((FEATURES,)), keras.layers.Dense(6, activation="tanh"), keras.layers.BatchNormalization()]
    layers += [keras.layers.Dropout(dropout)] if dropout else []
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    model.compile(optimizer, loss="mse", metrics=["mae", keras.metrics.RootMeanSquaredError(name="rmse")], **kwargs)
    return model


def fit(model, *callbacks, epochs=EPOCHS, data=None):
    data = dataset(tfdist.rank()) if data is None else data
    return model.fit(data, epochs=epochs, verbose=0, callbacks=list(callbacks))


def state_of(model):
    return [*model.get_weights(), *(np.asarray(variable) for variable in model.optimizer.variables)]


def assert_resumes(make, folder, at=(1, 4), save_freq=3, backup_first=False, plugin=DataParallel, identical=True):
    """Interrupts a training, resumes it with a model that starts from other weights and seeds, and compares."""

    def with_backup(*others):
        backup = BackupAndRestore(folder, save_freq=save_freq)
        return [backup, plugin(), *others] if backup_first else [plugin(), backup, *others]

    whole, every = make(tfdist.rank()), Steps()
    history = fit(whole, plugin(), every)
    with pytest.raises(Interrupted):
        fit(make(tfdist.rank()), *with_backup(StopAt(*at)))
    resumed, steps = make(50 + tfdist.rank()), Steps()
    rest = fit(resumed, *with_backup(steps))
    for index, (array, expected) in enumerate(zip(state_of(resumed), state_of(whole), strict=True)):
        np.testing.assert_array_equal(array, expected, err_msg=f"variable {index}")
    if identical:
        assert_identical_on_ranks(resumed.get_weights())
    assert steps.taken == every.taken[-len(steps.taken) :]
    assert steps.rates == every.rates[-len(steps.rates) :]
    assert rest.epoch == steps.ended == list(range(at[0], EPOCHS))
    for name, values in history.history.items():
        np.testing.assert_allclose(rest.history[name], values[at[0] :], rtol=1e-6, err_msg=name)
    return steps.taken


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers(world, shared_tmp_path, optimizer):
    """Interrupted after batch 4 of epoch 1, written after batch 2: an odd number of batches into an accumulation."""
    taken = assert_resumes(lambda seed: new_model(OPTIMIZERS[optimizer](), seed), shared_tmp_path / "backup")
    if "accumulated" not in optimizer:
        assert taken == [(1, 3), (1, 4), (1, 5), *((2, batch) for batch in range(STEPS))]


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize(("save_freq", "first"), [("epoch", 0), (1, 5), (4, 4)])
def test_frequencies(world, shared_tmp_path, save_freq, first):
    folder = shared_tmp_path / "backup"
    taken = assert_resumes(lambda seed: new_model(momentum(), seed), folder, save_freq=save_freq)
    assert taken == [*((1, batch) for batch in range(first, STEPS)), *((2, batch) for batch in range(STEPS))]


@pytest.mark.slice("ranks")
@pytest.mark.parametrize(("at", "save_freq"), [((1, 3), 1), ((1, 7), 3)])
def test_several_steps_an_execution(world, shared_tmp_path, at, save_freq):
    """Six steps are executions of four and two; Keras numbers the end of the second 7."""

    def make(seed):
        return new_model(momentum(), seed, steps_per_execution=4)

    assert_resumes(make, shared_tmp_path / "backup", at=at, save_freq=save_freq)


def test_eager(world, shared_tmp_path):
    assert_resumes(lambda seed: new_model(momentum(), seed, run_eagerly=True), shared_tmp_path / "backup")


@pytest.mark.parametrize("optimizer", ["momentum", "accumulated"])
def test_random_layers(world, shared_tmp_path, optimizer):
    """The masks go on where they were, and they differ by rank."""

    def make(seed):
        return new_model(OPTIMIZERS[optimizer](), seed, dropout=0.5)

    assert_resumes(make, shared_tmp_path / "backup")


@pytest.mark.slice("ranks")
@pytest.mark.parametrize("plugin", ["data_parallel", "warmup"])
def test_before_data_parallel_in_the_list(world, shared_tmp_path, plugin):
    epochs = {"data_parallel": 0, "warmup": 2}[plugin]
    assert_resumes(
        lambda seed: new_model(momentum(), seed),
        shared_tmp_path / "backup",
        backup_first=True,
        plugin=lambda: DataParallel(warmup_epochs=epochs),
    )


@pytest.mark.parametrize("backup_first", [False, True])
@pytest.mark.parametrize("optimizer", ["momentum", "schedule", "loss_scale"])
def test_warmup_in_progress(world, shared_tmp_path, optimizer, backup_first):
    assert_resumes(
        lambda seed: new_model(OPTIMIZERS[optimizer](), seed),
        shared_tmp_path / "backup",
        backup_first=backup_first,
        plugin=lambda: DataParallel(warmup_epochs=2.5),
    )


def test_rate_that_a_callback_changed(world, shared_tmp_path):
    """The rate of the file is in force, also one that is no multiple of the number of ranks."""
    folder = shared_tmp_path / "backup"
    rate = float(np.float32(0.123457))

    def change(epoch, logs):
        model.optimizer.learning_rate = rate

    model = new_model(momentum(), tfdist.rank())
    changing = keras.callbacks.LambdaCallback(on_epoch_end=change)
    with pytest.raises(Interrupted):
        fit(model, DataParallel(), changing, BackupAndRestore(folder), StopAt(1, 2))
    resumed = new_model(momentum(), 50 + tfdist.rank())
    fit(resumed, DataParallel(), BackupAndRestore(folder))
    assert float(resumed.optimizer.learning_rate) == rate


class Change(keras.callbacks.Callback):
    """Sets the rate and a weight at the end of each epoch, and may end the training there."""

    def __init__(self, interrupts_in=None):
        super().__init__()
        self.interrupts_in = interrupts_in

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self.interrupts_in:
            raise Interrupted
        self.model.optimizer.learning_rate = 0.7 * float(self.model.optimizer.learning_rate)
        bias = self.model.layers[-1].bias
        bias.assign(0.9 * bias)


PLACES = {
    "last": lambda change, backup: [DataParallel(), change, backup],
    "second": lambda change, backup: [DataParallel(), backup, change],
    "first": lambda change, backup: [backup, DataParallel(), change],
    "inside": lambda change, backup: [DataParallel(checkpoint=backup), change],
}


@pytest.mark.parametrize("place", PLACES)
def test_what_others_do_when_an_epoch_ends(world, shared_tmp_path, place):
    """Wherever the callback is in the list; also if one of the others ends the training there."""
    whole, every = new_model(momentum(), tfdist.rank()), Steps()
    fit(whole, DataParallel(), Change(), every)

    def train(seed, *callbacks, interrupts_in=None):
        model = new_model(momentum(), seed)
        backup = BackupAndRestore(shared_tmp_path)
        return model, fit(model, *PLACES[place](Change(interrupts_in), backup), *callbacks)

    with pytest.raises(Interrupted):
        train(tfdist.rank(), StopAt(1, 2))
    steps = Steps()
    resumed, history = train(50 + tfdist.rank(), steps)
    assert history.epoch == [1, 2]
    assert steps.rates == every.rates[STEPS:]
    for array, expected in zip(state_of(resumed), state_of(whole), strict=True):
        np.testing.assert_array_equal(array, expected)
    with pytest.raises(Interrupted):
        train(tfdist.rank(), interrupts_in=1)
    assert train(50 + tfdist.rank())[1].epoch == ([1, 2] if place == "last" else [2])


def test_what_nobody_changes_is_written_once(world, shared_tmp_path, monkeypatch):
    written, write = [], snapshot.write

    def noted(shelf, position, *args):
        written.append(position.epoch)
        return write(shelf, position, *args)

    monkeypatch.setattr(snapshot, "write", noted)
    idle = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: writer.wait_for_all())
    for number, others in enumerate(([], [keras.callbacks.LambdaCallback()], [Change()])):
        backup = BackupAndRestore(shared_tmp_path / str(number), delete_checkpoint=False)
        fit(new_model(momentum(), tfdist.rank()), DataParallel(), idle, backup, *others)
    assert written == ([1, 2, 3, 1, 2, 3, 1, 1, 2, 2, 3, 3] if tfdist.rank() == 0 else [])


def test_averages_in_the_place_of_weights(world, shared_tmp_path):
    """Keras puts the weights back when the next epoch begins; another process could not."""

    def make(seed):
        return new_model(OPTIMIZERS["adam_ema"](), seed)

    def plugin():
        return DataParallel()

    whole, every = make(tfdist.rank()), Steps()
    swap = keras.callbacks.SwapEMAWeights
    fit(whole, plugin(), every, swap(swap_on_epoch=True))
    with pytest.raises(Interrupted):
        fit(make(tfdist.rank()), plugin(), BackupAndRestore(shared_tmp_path), swap(swap_on_epoch=True), StopAt(1, 2))
    resumed = make(50 + tfdist.rank())
    fit(resumed, plugin(), BackupAndRestore(shared_tmp_path), swap(swap_on_epoch=True))
    for array, expected in zip(state_of(resumed), state_of(whole), strict=True):
        np.testing.assert_allclose(array, expected, rtol=1e-4, atol=1e-6)


def test_explicit_pieces(world, shared_tmp_path):
    """Moving statistics differ by rank here, and each rank gets its own back."""

    def make(seed):
        return new_model(tfdist.DistributedOptimizer(momentum()), seed)

    plugin = [BroadcastGlobalVariablesCallback(0), MetricAverageCallback()]
    assert_resumes(make, shared_tmp_path / "backup", plugin=lambda: plugin, identical=False)


def test_bfloat16_weights(world, shared_tmp_path):
    """A dtype that numpy has no name of its own for."""

    def make(seed):
        keras.utils.set_random_seed(seed)
        layers = [keras.Input((FEATURES,)), keras.layers.Dense(3, dtype="bfloat16"), keras.layers.Dense(1)]
        model = keras.Sequential(layers)
        model.compile(momentum(), loss="mse", metrics=["mae"])
        return model

    assert_resumes(make, shared_tmp_path / "backup")


def test_interrupted_and_resumed_with_the_same_model(world, shared_tmp_path):
    """As in a notebook; interrupted once more while batches are being dropped."""
    folder = shared_tmp_path / "backup"
    whole = new_model(momentum(), tfdist.rank())
    fit(whole, DataParallel())
    model = new_model(momentum(), tfdist.rank())
    for at in ((1, 4), (1, 1), (2, 3)):
        with pytest.raises(Interrupted):
            fit(model, DataParallel(), BackupAndRestore(folder, save_freq=3), StopAt(*at))
    fit(model, DataParallel(), BackupAndRestore(folder, save_freq=3))
    for array, expected in zip(state_of(model), state_of(whole), strict=True):
        np.testing.assert_array_equal(array, expected)


def written(folder, at, save_freq):
    with pytest.raises(Interrupted):
        fit(new_model(momentum(), tfdist.rank()), DataParallel(), BackupAndRestore(folder, save_freq), StopAt(*at))
    writer.wait_for_all()


def edit(folder, **changes):
    """Rank 0 changes values of the newest file."""
    if tfdist.rank() == 0:
        shelf = snapshot.open_shelf(folder, "folder")
        position, arrays, _ = snapshot.newest_valid(shelf)
        snapshot.write(shelf, position, {**arrays, **changes}, keep=1)
    tfdist.barrier(name="file is edited")


def test_another_number_of_ranks(world, shared_tmp_path):
    """In the middle of an epoch it is refused; at the beginning of one the rate is that of the new size."""
    middle, boundary = shared_tmp_path / "middle", shared_tmp_path / "boundary"
    written(middle, (1, 4), 3)
    edit(middle, ranks=np.array(world + 4))
    with pytest.raises(tfdist.errors.TfdistError, match=rf"by {world + 4} ranks, but this job has {world}"):
        fit(new_model(momentum(), tfdist.rank()), DataParallel(), BackupAndRestore(middle))
    written(boundary, (1, 2), "epoch")
    edit(boundary, ranks=np.array(world + 4))
    model = new_model(momentum(), 50 + tfdist.rank())
    assert fit(model, DataParallel(), BackupAndRestore(boundary)).epoch == [1, 2]
    np.testing.assert_allclose(float(model.optimizer.learning_rate), 0.05 * world, rtol=1e-6)
    assert_identical_on_ranks(state_of(model))


def other_model(kind):
    """Models that are nearly the one of `new_model`."""
    width = 7 if kind == "wider" else 6
    layers = [keras.Input((FEATURES,)), keras.layers.Dense(width, activation="tanh"), keras.layers.BatchNormalization()]
    layers += [] if kind == "smaller" else [keras.layers.Dense(1)]
    layers += [keras.layers.Dense(1)] if kind == "larger" else []
    model = keras.Sequential(layers)
    model.compile("adam" if kind == "optimizer" else momentum(), loss="mse")
    return model


@pytest.mark.parametrize("kind", ["larger", "smaller", "wider", "optimizer"])
def test_another_model_is_refused(world, shared_tmp_path, kind):
    """Keras would restore what fits and keep the rest as it is."""
    folder = shared_tmp_path / "backup"
    written(folder, (0, 2), 2)
    with pytest.raises(tfdist.errors.TfdistError, match=r"could not resume from .*from another model or optimizer"):
        fit(other_model(kind), DataParallel(), BackupAndRestore(folder))


@pytest.mark.parametrize("known", [True, False])
def test_a_shorter_dataset_is_refused(world, shared_tmp_path, known):
    folder = shared_tmp_path / "backup"
    written(folder, (1, 4), 1)
    data = dataset(tfdist.rank(), steps=2)
    message = (
        "after batch 5 of an epoch, but an epoch now has 2" if known else "ended 3 batches before the one to resume"
    )
    model = new_model(momentum(), tfdist.rank())
    with pytest.raises(tfdist.errors.TfdistError, match=message):
        fit(model, DataParallel(), BackupAndRestore(folder), data=data if known else data.filter(lambda x, y: True))


@pytest.mark.parametrize("steps_per_execution", [1, 4])
def test_written_after_the_last_batch_of_data_of_unknown_length(world, shared_tmp_path, steps_per_execution):
    """Nothing is left to train on in that epoch; the next one is whole."""

    def make(seed):
        return new_model(momentum(), seed, steps_per_execution=steps_per_execution)

    data = dataset(tfdist.rank()).filter(lambda x, y: True)
    last = (STEPS - 1) // steps_per_execution * steps_per_execution + steps_per_execution - 1
    whole = make(tfdist.rank())
    fit(whole, DataParallel(), data=data)
    stop = StopAt(1, last)
    with pytest.raises(Interrupted):
        fit(make(tfdist.rank()), DataParallel(), BackupAndRestore(shared_tmp_path, save_freq=1), stop, data=data)
    resumed, steps = make(50 + tfdist.rank()), Steps()
    fit(resumed, DataParallel(), BackupAndRestore(shared_tmp_path, save_freq=1), steps, data=data)
    assert {epoch for epoch, _ in steps.taken} == {2}
    for array, expected in zip(state_of(resumed), state_of(whole), strict=True):
        np.testing.assert_array_equal(array, expected)


def rows(reshuffle=False, **shards):
    x = np.random.default_rng(7).normal(size=(STEPS * BATCH * 2, FEATURES)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1]))
    data = data.shuffle(len(x), seed=1, reshuffle_each_iteration=reshuffle).with_options(without_autotune())
    return tfdist.shard(data, **shards) if shards else tfdist.shard(data).batch(BATCH)


def arrays(seed=None):
    """Keras shuffles them by the global seed, in each epoch alike."""
    keras.utils.set_random_seed(next(_seeds) if seed is None else seed)
    x = np.random.default_rng(7 + tfdist.rank()).normal(size=(STEPS * BATCH, FEATURES)).astype("float32")
    return {"x": x, "y": x[:, :1], "batch_size": BATCH}


_seeds = itertools.count()

# How fit gets its data, and whether another process gets it in another order in epoch 1.
ORDERS = {
    "reshuffled": (lambda: {"x": rows(reshuffle=True)}, True),
    "the same": (lambda: {"x": rows()}, False),
    "reshuffled global batches": (lambda: {"x": rows(reshuffle=True, global_batch=2 * BATCH)}, True),
    "the same global batches": (lambda: {"x": rows(global_batch=2 * BATCH)}, False),
    "arrays": (arrays, True),
    "arrays with a seed": (lambda: arrays(seed=5), False),
    "arrays as they are": (lambda: {**arrays(), "shuffle": False}, False),
}


@pytest.mark.parametrize("steps_per_execution", [1, 2])
@pytest.mark.parametrize("order", ORDERS)
def test_another_order_is_warned_of(world, shared_tmp_path, warnings_of_tfdist, order, steps_per_execution):
    """Those that are dropped are then not those that were trained on."""
    data_of, warns = ORDERS[order]
    folder = shared_tmp_path / "backup"

    def train(*callbacks):
        model = new_model(momentum(), tfdist.rank(), steps_per_execution=steps_per_execution)
        backup = BackupAndRestore(folder, save_freq=2)
        model.fit(**data_of(), epochs=EPOCHS, verbose=0, callbacks=[DataParallel(), backup, *callbacks])

    with pytest.raises(Interrupted):
        train(StopAt(1, 3))
    train()
    told = [line for line in warnings_of_tfdist if "order of before the interruption" in line]
    assert len(told) == (warns and tfdist.rank() == 0)
