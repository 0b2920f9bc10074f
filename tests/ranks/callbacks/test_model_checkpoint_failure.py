"""Whatever goes wrong on rank 0 while it saves is heard on every rank at once, and nobody waits."""

import keras
import numpy as np
import pytest

import tfdist
from tfdist.callbacks import BestModelCheckpoint, DataParallel, ModelCheckpoint


@keras.saving.register_keras_serializable("tests")
class NoConfiguration(keras.layers.Layer):
    """Cannot be written to a file, which Keras finds out only while it writes."""

    def call(self, x):
        return x

    def get_config(self):
        raise TypeError("this layer has no configuration")


def fit(layers, *callbacks, **kwargs):
    model = keras.Sequential([keras.Input((2,)), *layers, keras.layers.Dense(1)])
    model.compile("sgd", loss="mse")
    x = np.random.default_rng(tfdist.rank()).normal(size=(8, 2)).astype("float32")
    model.fit(x, x[:, :1], batch_size=2, verbose=0, callbacks=[DataParallel(), *callbacks], **kwargs)


def test_a_model_that_cannot_be_written(world, shared_tmp_path):
    path = shared_tmp_path / "model.keras"
    with pytest.raises(
        tfdist.errors.TfdistError, match=r"could not write .*model\.keras: TypeError: this layer has no"
    ):
        fit([NoConfiguration()], ModelCheckpoint(str(path)))
    tfdist.barrier(name="not written")
    assert list(shared_tmp_path.iterdir()) == []


class Uploads:
    """A place whose files are written when the test says so."""

    def __init__(self):
        self.ended = []

    def check(self):
        pass

    def wait(self):
        pass

    def write(self, path, fill, written):
        self.ended.append(written)


@pytest.mark.ranks(1)
def test_the_best_on_its_way_is_not_forgotten(world, shared_tmp_path):
    """One cannot be written while a better one is on its way; then a worse one must not replace that."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    best, place = BestModelCheckpoint(str(shared_tmp_path / "best.keras"), monitor="loss"), Uploads()
    best._place = place
    best.set_model(model)
    best.on_train_begin()
    for loss in (0.5, 0.4):
        best.on_epoch_end(0, {"loss": loss})
    place.ended[0](OSError("no answer"))
    best.on_epoch_end(2, {"loss": 0.45})
    assert len(place.ended) == 2
    place.ended[1](None)
    best.on_epoch_end(3, {"loss": 0.3})
    place.ended[2](OSError("no answer"))
    best.on_train_end()
    best.on_train_begin()  # of a later fit
    best.on_epoch_end(0, {"loss": 0.35})
    assert len(place.ended) == 4


def test_the_best_by_batches(world, shared_tmp_path):
    """Keras decides what is better at the end of an epoch; here batches are compared before that."""
    best = BestModelCheckpoint(str(shared_tmp_path / "best.keras"), monitor="loss", save_freq=1)
    fit([], best, epochs=2)
    tfdist.barrier(name="written")
    assert [path.name for path in shared_tmp_path.iterdir()] == ["best.keras"]
    assert len(set(tfdist.allgather_object(float(best.best), name="best"))) == 1
