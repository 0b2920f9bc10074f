"""Rank 0 writes, completely or not at all; every rank knows what became of it."""

import re
import subprocess
import sys

import keras
import numpy as np
import pytest

import tfdist
from tfdist.callbacks import BestModelCheckpoint, BroadcastGlobalVariablesCallback, DataParallel, ModelCheckpoint
from tfdist.testing.parity import assert_close

FEATURES = 3

LOAD_AND_CONTINUE = """
import sys
sys.modules["tfdist"] = None  # as where it is not installed
import keras, numpy as np
model = keras.models.load_model(sys.argv[1])
print(type(model.optimizer).__module__.split(".")[0], int(model.optimizer.iterations), len(model.optimizer.variables))
print(f"{float(model.optimizer.learning_rate):.6f}")
history = model.fit(np.ones((8, 3)), np.ones((8, 1)), verbose=0)
print(int(model.optimizer.iterations), all(np.isfinite(history.history["loss"])))
"""


def samples(rank):
    generator = np.random.default_rng(60 + rank)
    x = generator.normal(size=(16, FEATURES)).astype("float32")
    return x, (x[:, :1] + rank).astype("float32")


def new_model(optimizer="sgd"):
    keras.utils.set_random_seed(2)
    model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(1)])
    model.compile(optimizer, loss="mse")
    return model


def fit(model, *callbacks, **kwargs):
    options = {"batch_size": 4, "shuffle": False, "verbose": 0, **kwargs}
    return model.fit(*samples(tfdist.rank()), callbacks=list(callbacks), **options)


def names_in(folder):
    tfdist.barrier(name="written")
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("scaled_loss", [False, True])
def test_loads_and_continues_where_tfdist_is_not_installed(world, scaled_loss, shared_tmp_path):
    optimizer = keras.optimizers.AdamW(0.01)
    if scaled_loss:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    path = shared_tmp_path / "model.keras"
    fit(new_model(optimizer), DataParallel(), ModelCheckpoint(str(path)), epochs=2)
    if tfdist.rank() == 0:
        done = subprocess.run(
            [sys.executable, "-c", LOAD_AND_CONTINUE, str(path)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        state = len(new_model_variables(scaled_loss))
        assert done.stdout.split() == ["keras", "8", str(state), "0.010000", "9", "True"]


def new_model_variables(scaled_loss):
    optimizer = keras.optimizers.AdamW(0.01)
    model = new_model(keras.optimizers.LossScaleOptimizer(optimizer) if scaled_loss else optimizer)
    model.optimizer.build(model.trainable_variables)
    return model.optimizer.variables


@pytest.mark.parametrize("monitor", ["val_loss", "loss"])
def test_the_best_is_kept(world, monitor, shared_tmp_path):
    """A rate so large that the first epoch is the best; by the logs of their own, ranks would not agree."""
    model = new_model(tfdist.DistributedOptimizer(keras.optimizers.SGD(3.0)))
    best = BestModelCheckpoint(
        str(shared_tmp_path / "best-{epoch}.weights.h5"), monitor=monitor, save_weights_only=True
    )
    fit(
        model,
        best,
        BroadcastGlobalVariablesCallback(0),
        tfdist.callbacks.MetricAverageCallback(),
        validation_data=samples(tfdist.rank() + 5),
        epochs=3,
    )
    assert names_in(shared_tmp_path) == ["best-1.weights.h5"]
    assert len(set(tfdist.allgather_object(float(best.best), name="best"))) == 1


def test_ranks_that_judge_differently_do_not_hang(world, shared_tmp_path):
    """Without averaged metrics rank 0 alone decides."""
    best = BestModelCheckpoint(str(shared_tmp_path / "best-{epoch}.keras"), monitor="loss")
    model = new_model(keras.optimizers.SGD(3.0 if tfdist.rank() == 0 else 0.001))
    fit(model, best, epochs=3)
    assert names_in(shared_tmp_path) == ["best-1.keras"]


def test_by_batches(world, shared_tmp_path):
    path = str(shared_tmp_path / "model-{epoch}-{batch}.weights.h5")
    fit(new_model(), ModelCheckpoint(path, save_freq=3, save_weights_only=True), epochs=2)
    assert names_in(shared_tmp_path) == ["model-1-3.weights.h5", "model-2-2.weights.h5"]


def test_missing_folders_are_made_and_nothing_else_is_left(world, shared_tmp_path):
    model = new_model()
    path = shared_tmp_path / "a" / "b" / "model.keras"
    fit(model, DataParallel(), ModelCheckpoint(str(path)), epochs=2)
    assert names_in(path.parent) == ["model.keras"]
    assert_close(keras.models.load_model(path).get_weights(), model.get_weights(), relative=0)


@pytest.mark.parametrize("name", ["file/model.keras", "file/{epoch}/model.keras", "folder.keras", "/proc/x/y.keras"])
def test_a_file_that_can_never_be_written(world, name, shared_tmp_path):
    """On every rank, before the first step."""
    (shared_tmp_path / "file").write_text("in the way")
    (shared_tmp_path / "folder.keras").mkdir(exist_ok=True)
    model, path = new_model(), shared_tmp_path / name
    with pytest.raises(tfdist.errors.TfdistError, match=rf"rank 0 could not write .*{re.escape(name)}: \w+Error: "):
        fit(model, ModelCheckpoint(str(path)))
    assert model.optimizer.iterations == 0


def test_a_failed_write_leaves_the_old_file(world, shared_tmp_path, monkeypatch, warnings_of_tfdist):
    """A full disk: the file of the epoch before stays whole, and no piece of the new one is left."""
    path = shared_tmp_path / "model.keras"
    model = new_model()
    fit(model, ModelCheckpoint(str(path)))
    tfdist.barrier(name="first file")
    before = path.read_bytes()

    def full(filepath, overwrite=True):
        with open(filepath, "wb") as file:
            file.write(b"half a model")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(model), "save", lambda self, *args, **kwargs: full(*args, **kwargs))
    fit(model, ModelCheckpoint(str(path)))
    assert names_in(shared_tmp_path) == ["model.keras"]
    assert path.read_bytes() == before
    assert sum("No space left on device" in line for line in warnings_of_tfdist) == (2 if tfdist.rank() == 0 else 0)


def test_only_rank_zero_prints(world, shared_tmp_path, capsys):
    fit(new_model(), ModelCheckpoint(str(shared_tmp_path / "model.keras"), verbose=1))
    assert ("saving model" in capsys.readouterr().out) == (tfdist.rank() == 0)
