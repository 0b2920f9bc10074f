"""Backups are written while training goes on, also where the disk is slow, and where it is full."""

import errno
import os
import resource
import shutil
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.callbacks import BackupAndRestore, BestModelCheckpoint, DataParallel, ModelCheckpoint
from tfdist.callbacks.store import snapshot, writer
from tfdist.callbacks.store.snapshot import Position
from tfdist.system.whole_file import FileKind

pytestmark = pytest.mark.ranks(2)
STEPS, EPOCHS, WIDTH = 4, 4, 50


def new_model():
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(WIDTH), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1e-4, momentum=0.9), loss="mse")
    return model


def fit(model, *callbacks, **kwargs):
    x = np.random.default_rng(tfdist.rank()).normal(size=(2 * STEPS, WIDTH)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(2)
    return model.fit(data, verbose=0, callbacks=[DataParallel(), *callbacks], **{"epochs": EPOCHS, **kwargs})


class Weights(keras.callbacks.Callback):
    """The weights at the end of each epoch."""

    def __init__(self):
        super().__init__()
        self.at = {}

    def on_epoch_end(self, epoch, logs=None):
        self.at[epoch + 1] = self.model.get_weights()


@pytest.fixture
def slow_disk(monkeypatch):
    """Nothing is written before `set()`."""
    free, write = threading.Event(), snapshot.write

    def wait_and_write(*args):
        assert free.wait(60)
        return write(*args)

    monkeypatch.setattr(snapshot, "write", wait_and_write)
    yield free
    free.set()
    writer.wait_for_all()


class Free(keras.callbacks.Callback):
    """Lets the disk write, at the begin of an epoch."""

    def __init__(self, disk, epoch):
        super().__init__()
        self.disk, self.epoch = disk, epoch

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.epoch:
            self.disk.set()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def names_of(*epochs):
    return [f"epoch-{epoch:06d}-batch-000000000.snapshot" for epoch in epochs]


def test_training_does_not_wait_and_backup_is_of_its_step(world, shared_tmp_path, slow_disk):
    """The file of the first epoch is written while the second trains, with the state of the first."""
    weights = Weights()
    fit(new_model(), weights, BackupAndRestore(shared_tmp_path, delete_checkpoint=False), Free(slow_disk, 1), epochs=2)
    tfdist.barrier(name="trained")
    assert names(shared_tmp_path) == names_of(1, 2)
    for epoch, name in enumerate(names_of(1, 2), 1):
        arrays = snapshot.decode((shared_tmp_path / name).read_bytes())
        for index, expected in enumerate(weights.at[epoch]):
            np.testing.assert_array_equal(arrays[f"weight/{index}"], expected)


def test_the_end_of_fit_waits_for_the_newest(world, shared_tmp_path, slow_disk, warnings_of_tfdist):
    """A disk that is slower than all of the training: the second and third wait for the first, and are replaced."""
    timer = threading.Timer(1.0, slow_disk.set)

    class Last(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == EPOCHS - 1:
                timer.start()

    fit(new_model(), BackupAndRestore(shared_tmp_path, delete_checkpoint=False), Last())
    tfdist.barrier(name="trained")
    assert names(shared_tmp_path) == names_of(1, EPOCHS)
    left_out = [line for line in warnings_of_tfdist if "is skipped" in line]
    assert len(left_out) == (tfdist.rank() == 0)
    if left_out:
        assert left_out[0].startswith("tfdist rank 0: a backup before that of epoch 3, batch 0 is skipped")
        assert "save_freq=epoch" in left_out[0]


def test_a_folder_that_is_to_be_removed_is(world, shared_tmp_path, slow_disk):
    """The write that is under way ends first, and the one after it does not begin."""
    folder = shared_tmp_path / "backup"
    fit(new_model(), BackupAndRestore(folder), Free(slow_disk, 3))
    tfdist.barrier(name="trained")
    assert not folder.exists()


def test_a_fit_after_an_interrupted_one_waits(world, shared_tmp_path, slow_disk):
    class Interrupt(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if self.model.optimizer.iterations == 2 * STEPS + 1:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(new_model(), BackupAndRestore(shared_tmp_path), Interrupt())
    assert list(shared_tmp_path.glob("*.snapshot")) == []
    threading.Timer(0.5, slow_disk.set).start()
    assert fit(new_model(), BackupAndRestore(shared_tmp_path)).epoch == [2, 3]


def test_what_a_killed_process_has_begun_is_removed(world, shared_tmp_path):
    if tfdist.rank() == 0:
        for name in (".host-1.example.123.epoch-000001-batch-000000000.snapshot", ".other.snapshot", "notes"):
            (shared_tmp_path / name).write_bytes(b"half")
    tfdist.barrier(name="made")
    fit(new_model(), BackupAndRestore(shared_tmp_path, delete_checkpoint=False), epochs=1)
    tfdist.barrier(name="trained")
    assert names(shared_tmp_path) == [".other.snapshot", *names_of(1), "notes"]


class Wait(keras.callbacks.Callback):
    """Each epoch begins when all before is written, or is known not to be."""

    def on_epoch_begin(self, epoch, logs=None):
        writer.wait_for_all()


class Disk(Wait):
    """No file may be larger than 1000 bytes from the begin of one epoch to that of another, on rank 0."""

    def __init__(self, full_from, full_until):
        super().__init__()
        self.changes = {full_from: 1000, full_until: resource.RLIM_INFINITY}

    def on_epoch_begin(self, epoch, logs=None):
        super().on_epoch_begin(epoch, logs)
        if epoch in self.changes:
            self.limit(self.changes[epoch])

    def on_train_end(self, logs=None):
        self.limit(resource.RLIM_INFINITY)

    def limit(self, size_bytes):
        if tfdist.rank() == 0:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, resource.RLIM_INFINITY))


def test_training_goes_on_where_nothing_can_be_written(world, shared_tmp_path, warnings_of_tfdist):
    """As without the backup, to the bit; told once, and at the end again."""
    plain, model = new_model(), new_model()
    fit(plain)
    fit(model, BackupAndRestore(shared_tmp_path, save_freq=2, delete_checkpoint=False), Disk(1, 9))
    for one, other in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    tfdist.barrier(name="trained")
    assert names(shared_tmp_path) == sorted(["epoch-000000-batch-000000002.snapshot", *names_of(1)])
    told = [line for line in warnings_of_tfdist if "could not" in line]
    assert len(told) == (2 if tfdist.rank() == 0 else 0)
    if told:
        assert told[0].startswith(
            f"tfdist rank 0: could not write the backup of epoch 1, batch 2 to {shared_tmp_path}: OSError: "
            "[Errno 27] File too large. It needs "
        )
        assert "a file may have no more than 1.0 kB, the limit of ulimit -f" in told[0]
        assert told[0].endswith("The newest complete one is the backup of epoch 1, batch 0.")
        assert "The newest complete one is the backup of epoch 1, batch 0." in told[1]


def test_the_next_one_is_tried_again(world, shared_tmp_path, warnings_of_tfdist):
    fit(new_model(), BackupAndRestore(shared_tmp_path, delete_checkpoint=False), Disk(1, 3))
    tfdist.barrier(name="trained")
    assert names(shared_tmp_path) == names_of(1, 4)
    if tfdist.rank() == 0:
        assert ["backup of epoch 4" in line for line in warnings_of_tfdist if "again" in line][-1:] == [True]
        assert sum("could not" in line for line in warnings_of_tfdist) == 1


@pytest.mark.parametrize(
    ("name", "weights_only"), [("{epoch}.keras", False), ("{epoch}.h5", False), ("{epoch}.weights.h5", True)]
)
def test_checkpoints_of_keras(world, name, weights_only, shared_tmp_path, warnings_of_tfdist):
    path = str(shared_tmp_path / name)
    fit(new_model(), ModelCheckpoint(path, save_weights_only=weights_only), Disk(1, 3))
    tfdist.barrier(name="trained")
    assert names(shared_tmp_path) == sorted(name.format(epoch=epoch) for epoch in (1, 4))
    if tfdist.rank() == 0:
        first, again = warnings_of_tfdist
        assert first.startswith(
            f"tfdist rank 0: could not write the checkpoint {path.format(epoch=2)} to {shared_tmp_path}: "
        )
        assert "File too large" in first or "errno = 27" in first
        assert "ulimit -f" in first
        assert "checkpoints can be written again" in again


def test_the_best_is_the_best_of_those_that_are_written(world, shared_tmp_path):
    """Losses fall; where the disk has room again, the next is better than the last that was written."""
    path = shared_tmp_path / "best.weights.h5"
    best = BestModelCheckpoint(str(path), monitor="loss", save_weights_only=True)
    history = fit(new_model(), best, Disk(1, 9)).history["loss"]
    assert history == sorted(history, reverse=True)
    assert best.best == pytest.approx(history[0])


@pytest.fixture
def small_disk(shared_tmp_path):
    """A file system of 40 kB, seen by rank 0 alone."""
    folder = shared_tmp_path / "disk"
    folder.mkdir(exist_ok=True)
    tfdist.barrier(name="folder")
    mounted = tfdist.rank() == 0 and os.system(f"mount -t tmpfs -o size=40k tmpfs {folder} 2>/dev/null") == 0
    if not tfdist.broadcast_object(mounted, 0):
        pytest.skip("needs the right to mount a file system (root, CAP_SYS_ADMIN)")
    yield folder
    writer.wait_for_all()
    if mounted:
        assert os.system(f"umount {folder}") == 0


def test_a_disk_that_is_really_full(world, small_disk, warnings_of_tfdist):
    """The first file has room, and the second beside it has not."""
    fit(new_model(), BackupAndRestore(small_disk, delete_checkpoint=False), Wait())
    if tfdist.rank() == 0:
        assert names(small_disk) == names_of(1)
        assert snapshot.newest_valid(snapshot.open_shelf(small_disk, "folder"))[0] == Position(1, 0)
        first, last = warnings_of_tfdist
        assert "[Errno 28] No space left on device. It needs " in first
        free = shutil.disk_usage(small_disk).free
        assert f"and {free / 1e3:.1f} kB are free there: " in first
        assert "kB are missing. Free up space there" in first
        assert "and 3 of its backups could not be written, starting with the backup of epoch 2, batch 0." in last


@pytest.mark.parametrize(
    ("name", "weights_only"), [("model.keras", False), ("model.h5", False), ("model.weights.h5", True)]
)
def test_a_checkpoint_on_a_disk_that_is_full(world, name, weights_only, small_disk, warnings_of_tfdist):
    """HDF5 would end the process, and must not be let to."""
    if tfdist.rank() == 0:
        (small_disk / "filling").write_bytes(bytes(36_000))
    fit(new_model(), ModelCheckpoint(str(small_disk / name), save_weights_only=weights_only))
    if tfdist.rank() == 0:
        assert names(small_disk) == ["filling"]
        first, last = warnings_of_tfdist
        assert f"could not write the checkpoint {small_disk / name} to {small_disk}: OSError: [Errno 28]" in first
        assert "MB, and 4.1 kB are free there: 1.1 MB are missing" in first
        assert "4 of its checkpoints could not be written" in last and "None has been written so far" in last


CALLS = {
    "open": (os, "open"),
    "write": (FileKind, "header"),
    "fsync": (os, "fsync"),
    "replace": (os, "replace"),
}


@pytest.mark.parametrize(
    ("call", "number"),
    [("open", errno.EROFS), ("write", errno.ENOSPC), ("fsync", errno.EIO), ("replace", errno.EDQUOT)],
)
def test_an_error_of_any_call(world, call, number, shared_tmp_path, monkeypatch, warnings_of_tfdist):
    def fails(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    class Fail(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            writer.wait_for_all()
            if epoch == 1:
                place, name = CALLS[call]
                monkeypatch.setattr(place, name, fails)

    fit(new_model(), BackupAndRestore(shared_tmp_path, delete_checkpoint=False), Fail(), epochs=3)
    monkeypatch.undo()
    tfdist.barrier(name="trained")
    assert names(shared_tmp_path) == names_of(1)
    if tfdist.rank() == 0:
        assert [os.strerror(number) in line for line in warnings_of_tfdist] == [True, True]
