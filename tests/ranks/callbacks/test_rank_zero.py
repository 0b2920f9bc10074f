"""Any callback, on rank 0 only."""

import cloudpickle
import keras
import numpy as np
import pytest

import tfdist
from tfdist.callbacks import DataParallel, RankZero


class Everything(keras.callbacks.Callback):
    """Notes each hook, and evaluates inside some."""

    def __init__(self, data):
        super().__init__()
        self.data, self.hooks, self.losses = data, [], []

    def on_train_begin(self, logs=None):
        self.hooks.append("train begin")

    def on_train_batch_end(self, batch, logs=None):
        self.hooks.append(f"batch {batch}")

    def on_epoch_end(self, epoch, logs=None):
        self.hooks.append(f"epoch {epoch}")
        self.losses.append(self.model.evaluate(*self.data, verbose=0))

    def on_test_begin(self, logs=None):
        self.hooks.append("test")

    def on_train_end(self, logs=None):
        self.hooks.append("train end")


def test_rank_zero(world):
    x = np.random.default_rng(tfdist.rank()).normal(size=(8, 2)).astype("float32")
    y = x[:, :1]
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", loss="mse")
    inner = Everything((x, y))
    model.fit(
        x, y, batch_size=4, epochs=2, verbose=0, validation_data=(x, y), callbacks=[DataParallel(), RankZero(inner)]
    )
    epoch = ["batch 0", "batch 1", "test"]
    expected = ["train begin", *epoch, "epoch 0", *epoch, "epoch 1", "train end"]
    assert inner.hooks == (expected if tfdist.rank() == 0 else [])
    if tfdist.rank() == 0:
        np.testing.assert_allclose(inner.losses[-1], np.mean((model.predict(x, verbose=0) - y) ** 2), rtol=1e-5)


def test_a_function_makes_it_on_rank_zero_alone(world):
    """Where making it acts, as where a tracker logs in; also a class is such a function."""
    made = []

    def make():
        made.append(tfdist.rank())
        return Everything((x, x[:, :1]))

    x = np.full((4, 2), float(tfdist.rank()), "float32")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", loss="mse")
    wrapped = RankZero(make)
    model.fit(x, x[:, :1], verbose=0, callbacks=[DataParallel(), wrapped, RankZero(keras.callbacks.History)])
    assert made == ([0] if tfdist.rank() == 0 else [])
    if tfdist.rank() == 0:
        assert wrapped.callback.hooks[0] == "train begin"
    else:
        assert wrapped.callback is None


def fails():
    raise ConnectionError("no login")


def test_what_is_no_callback_is_refused(world):
    for wrong in ("log.csv", None, 3):
        with pytest.raises(tfdist.errors.ConfigError, match="a Keras callback or a function that makes one; received"):
            RankZero(wrong)
    if tfdist.rank() == 0:
        with pytest.raises(tfdist.errors.ConfigError, match="must return a Keras callback; received None"):
            RankZero(lambda: None)
        with pytest.raises(ConnectionError, match="no login"):
            RankZero(fails)
    else:
        RankZero(lambda: None)
        RankZero(fails)


CALLS = []


def make():
    CALLS.append("made")
    return Counts()


class Counts(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        CALLS.append(epoch)


def test_one_that_was_sent_runs_on_rank_zero_alone(world):
    _check_sent(Counts(), [])
    _check_sent(make, ["made"])


def _check_sent(given, made):
    """As from a driver, which is rank 0 of its own world."""
    del CALLS[:]
    wrapped = cloudpickle.loads(tfdist.broadcast_object(cloudpickle.dumps(RankZero(given))))
    assert (made if tfdist.rank() == 0 else []) == CALLS, "by the driver"
    x = np.full((4, 2), 1.0, "float32")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", loss="mse")
    for epoch in range(2):
        model.fit(x, x[:, :1], verbose=0, callbacks=[DataParallel(), wrapped], initial_epoch=epoch, epochs=epoch + 1)
        wrapped = wrapped if epoch else cloudpickle.loads(cloudpickle.dumps(wrapped))
    assert ([*made, *made, 0, *made, 1] if tfdist.rank() == 0 else []) == CALLS


def test_keras_writers(world, shared_tmp_path):
    """Keras' own callbacks write once, with the logs of all ranks."""
    path = shared_tmp_path / "log.csv"
    x = np.full((8, 2), float(tfdist.rank()), "float32")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", loss="mse")
    history = model.fit(
        x, x[:, :1], verbose=0, callbacks=[RankZero(keras.callbacks.CSVLogger(str(path))), DataParallel()]
    ).history
    tfdist.barrier(name="written")
    header, line = path.read_text().split()
    assert header.startswith("epoch,loss")
    np.testing.assert_allclose(float(line.split(",")[1]), history["loss"][0], rtol=1e-6)
