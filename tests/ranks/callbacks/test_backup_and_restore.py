"""A training that is interrupted and started again ends with the bits of one that was not."""

import json
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from interruption import AtBatch

import tfdist
from tfdist.callbacks import BackupAndRestore, DataParallel, ModelCheckpoint
from tfdist.callbacks.store import writer
from tfdist.testing.parity import assert_identical_on_ranks

FEATURES, BATCH, STEPS, EPOCHS = 3, 2, 8, 3


def dataset():
    generator = np.random.default_rng(40 + tfdist.rank())
    x = generator.normal(size=(BATCH * STEPS, FEATURES)).astype("float32")
    # TensorFlow's thread for tuning may hold up the end of an iterator that is given up early for half a minute.
    options = tf.data.Options()
    options.autotune.enabled = False
    return tf.data.Dataset.from_tensor_slices((x, np.sin(x[:, :1] + tfdist.rank()))).batch(BATCH).with_options(options)


OPTIMIZERS = {
    "momentum": lambda **kwargs: keras.optimizers.SGD(0.02, momentum=0.9, **kwargs),
    "adam": lambda **kwargs: keras.optimizers.Adam(0.01, **kwargs),
}


def new_model(optimizer, **kwargs):
    """Each rank starts from other weights and other seeds, as after a start of its own."""
    keras.utils.set_random_seed(5 + tfdist.rank())
    layers = [
        keras.Input((FEATURES,)),
        keras.layers.Dense(4, activation="tanh"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(1),
    ]
    model = keras.Sequential(layers)
    model.compile(optimizer, loss="mse", metrics=["mae"], **kwargs)
    return model


class Interrupt(AtBatch):
    """Raises at one batch, as a killed process stops there."""

    def on_train_batch_begin(self, batch, logs=None):
        if self.is_there(batch):
            raise KeyboardInterrupt


class Record(keras.callbacks.Callback):
    """The first epoch, and the logs of all."""

    def __init__(self):
        super().__init__()
        self.epochs, self.first = {}, None

    def on_epoch_begin(self, epoch, logs=None):
        self.first = epoch if self.first is None else self.first

    def on_epoch_end(self, epoch, logs=None):
        self.epochs[epoch] = {name: np.asarray(value).tolist() for name, value in logs.items()}


def train(model, folder, *callbacks, **kwargs):
    record = Record()
    backup = BackupAndRestore(folder, **kwargs)
    model.fit(
        dataset(),
        validation_data=dataset(),
        epochs=EPOCHS,
        verbose=0,
        callbacks=[DataParallel(scale_learning_rate=False), backup, record, *callbacks],
    )
    return record


def state_of(model):
    return [*model.get_weights(), *(np.asarray(variable) for variable in model.optimizer.variables)]


def check(make, folder, interrupt, first_epoch, **kwargs):
    whole = make()
    expected = train(whole, folder / "whole", **kwargs)
    with pytest.raises(KeyboardInterrupt):
        train(make(), folder / "parts", Interrupt(*interrupt), **kwargs)
    resumed = make()
    record = train(resumed, folder / "parts", **kwargs)
    assert record.first == first_epoch
    assert set(record.epochs) == set(range(first_epoch, EPOCHS))
    for epoch, logs in record.epochs.items():
        # What was counted before and after the interruption is added in another order, so not bit for bit.
        assert logs == pytest.approx(expected.epochs[epoch], rel=1e-5)
    for index, (actual, wanted) in enumerate(zip(state_of(resumed), state_of(whole), strict=True)):
        assert actual.tobytes() == wanted.tobytes(), f"array {index} of the state: {np.abs(actual - wanted).max()}"
    assert_identical_on_ranks(state_of(resumed))


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_in_the_middle_of_an_epoch(world, optimizer, shared_tmp_path):
    check(lambda: new_model(OPTIMIZERS[optimizer]()), shared_tmp_path, (1, 5), 1, save_freq=3)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_at_the_end_of_an_epoch(world, optimizer, shared_tmp_path):
    check(lambda: new_model(OPTIMIZERS[optimizer]()), shared_tmp_path, (1, 5), 1)


def test_right_after_the_last_batch_of_an_epoch(world, shared_tmp_path):
    """8 is the last batch: the epoch has ended for the data, but not for the callbacks."""
    check(lambda: new_model(OPTIMIZERS["momentum"]()), shared_tmp_path, (1, 1), 1, save_freq=4)


@pytest.mark.slice("ranks")
def test_with_several_steps_an_execution(world, shared_tmp_path):
    check(lambda: new_model(OPTIMIZERS["momentum"](), steps_per_execution=2), shared_tmp_path, (1, 6), 1, save_freq=2)


def test_in_the_middle_of_gradient_accumulation(world, shared_tmp_path):
    """Each rank has accumulated gradients of its own."""

    def make():
        return new_model(OPTIMIZERS["adam"](gradient_accumulation_steps=3))

    check(make, shared_tmp_path, (1, 5), 1, save_freq=4)


@pytest.mark.slice("ranks")
def test_nothing_is_written_for_batches_that_are_only_drawn(world, shared_tmp_path):
    folder = shared_tmp_path / "backup"
    with pytest.raises(KeyboardInterrupt):
        train(new_model("sgd"), folder, Interrupt(0, 6), save_freq=5)
    names = []

    class Written(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            names.append(sorted(path.name for path in shared_tmp_path.glob("model-*")))

    checkpoint = ModelCheckpoint(
        str(shared_tmp_path / "model-{epoch}-{batch}.weights.h5"), save_freq=1, save_weights_only=True
    )
    train(new_model("sgd"), folder, checkpoint, Written(), save_freq=5)
    assert names[4] == []
    assert names[5] == ["model-1-6.weights.h5"]


def test_a_model_beside_the_backups_stays(world, shared_tmp_path):
    folder = shared_tmp_path / "run"
    train(new_model("sgd"), folder, ModelCheckpoint(str(folder / "model.keras")))
    tfdist.barrier(name="trained")
    assert [path.name for path in folder.iterdir()] == ["model.keras"]
    keras.models.load_model(folder / "model.keras")


def interrupted(folder):
    """Two files are there: of the ends of the first two epochs."""
    with pytest.raises(KeyboardInterrupt):
        train(new_model("sgd"), folder, Interrupt(2, 1))
    writer.wait_for_all()
    tfdist.barrier(name="interrupted")


def test_a_torn_file_is_skipped(world, shared_tmp_path, warnings_of_tfdist):
    """The one before it is used, and the line in the log says why."""
    folder = shared_tmp_path / "backup"
    interrupted(folder)
    if tfdist.rank() == 0:
        newest = max(folder.iterdir())
        newest.write_bytes(newest.read_bytes()[:-7])
    tfdist.barrier(name="torn")
    assert train(new_model("sgd"), folder).first == 1
    told = [line for line in warnings_of_tfdist if " is skipped: " in line]
    assert len(told) == (tfdist.rank() == 0)
    if told:
        assert re.search(
            r"tfdist rank 0: .*/epoch-000002-batch-000000000\.snapshot is skipped: it has \d+ bytes of", told[0]
        )


def test_all_files_torn(world, shared_tmp_path):
    folder = shared_tmp_path / "backup"
    interrupted(folder)
    if tfdist.rank() == 0:
        for path in folder.iterdir():
            path.write_bytes(b"")
    tfdist.barrier(name="torn")
    with pytest.raises(tfdist.errors.TfdistError, match=r"rank 0 could not resume from .*does not begin like"):
        train(new_model("sgd"), folder)


def test_what_is_kept_and_what_is_removed(world, shared_tmp_path):
    for name, keep in (("two", True), ("one", False)):
        folder = shared_tmp_path / name
        train(new_model("sgd"), folder, double_checkpoint=keep, delete_checkpoint=False)
        assert len(list(folder.iterdir())) == (2 if keep else 1)
    folder = shared_tmp_path / "removed"
    train(new_model("sgd"), folder)
    tfdist.barrier(name="trained")
    assert not folder.exists()


def test_a_later_fit_begins_at_its_first_epoch(world, shared_tmp_path):
    model = new_model("sgd")
    with pytest.raises(KeyboardInterrupt):
        train(model, shared_tmp_path / "backup", Interrupt(2, 1))
    assert train(model, shared_tmp_path / "backup").first == 2
    assert train(model, shared_tmp_path / "backup").first == 0


def finished(make, folder):
    """A training that was killed after its last backup, before its end."""
    model = make()
    train(model, folder, delete_checkpoint=False)
    tfdist.barrier(name="finished")
    return state_of(model)


def test_nothing_is_left_to_train(world, shared_tmp_path, warnings_of_tfdist):
    expected = finished(lambda: new_model("sgd"), shared_tmp_path / "backup")
    resumed = new_model("sgd")
    record = train(resumed, shared_tmp_path / "backup")
    assert record.first is None
    assert [each.tobytes() for each in state_of(resumed)] == [each.tobytes() for each in expected]
    told = [line for line in warnings_of_tfdist if f"the end of the {EPOCHS} epochs" in line]
    assert len(told) == (tfdist.rank() == 0)


@pytest.mark.parametrize("name", ["file/backup", "/proc/backup"])
def test_a_folder_that_can_never_be_made(world, name, shared_tmp_path):
    """Before the first step."""
    (shared_tmp_path / "file").write_text("in the way")
    model = new_model("sgd")
    with pytest.raises(tfdist.errors.TfdistError, match=rf"rank 0 could not write a backup to .*{name}: "):
        train(model, shared_tmp_path / name)
    assert model.optimizer.iterations == 0


@pytest.mark.parametrize("arguments", [{"save_freq": 0}, {"save_freq": "batch"}, {"backup_dir": ""}], ids=json.dumps)
def test_arguments(world, arguments):
    with pytest.raises(tfdist.errors.ConfigError):
        BackupAndRestore(**{"backup_dir": "backup", **arguments})
