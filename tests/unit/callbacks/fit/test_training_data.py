"""A `fit` knows how the data was dealt out that it trains on, and nothing of other data in the process."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.callbacks.fit import training_data
from tfdist.input import mark

X, Y = np.ones((8, 2), "float32"), np.zeros((8, 1), "float32")


class Looks(keras.callbacks.Callback):
    """What is known of the fit from each place that asks."""

    def __init__(self, within=None):
        super().__init__()
        self.seen, self._within = [], within

    def look(self):
        self.seen.append((training_data.remainders(self.model), training_data.is_uneven(self.model)))

    def on_train_begin(self, logs=None):
        self.look()

    def on_train_batch_begin(self, batch, logs=None):
        self.look()

    def on_epoch_end(self, epoch, logs=None):
        if self._within is not None:
            self._within()
        self.look()


def new_model():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def dataset():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)


def arrays(remainder):
    return mark.put((X.copy(), Y.copy()), remainder)


def seen_in(model, *data, **arguments):
    """What a fit knows, the same wherever it is asked."""
    looks = Looks(arguments.pop("within", None))
    model.fit(*data, verbose=0, callbacks=[looks], **arguments)
    assert len(looks.seen) >= 3
    assert all(each == looks.seen[0] for each in looks.seen)
    remainders, uneven = looks.seen[0]
    assert uneven == ("join" in remainders)
    return remainders


def batches():
    yield from dataset()


CASES = {
    "part": (lambda: {"x": mark.put(dataset(), "join").prefetch(1)}, {"join"}),
    "even part": (lambda: {"x": mark.put(dataset(), "pad")}, {"pad"}),
    "no part": (lambda: {"x": dataset()}, set()),
    "validation": (lambda: {"x": dataset(), "validation_data": mark.put(dataset(), "join")}, set()),
    "both": (lambda: {"x": mark.put(dataset(), "drop"), "validation_data": mark.put(dataset(), "join")}, {"drop"}),
    "arrays": (lambda: dict(zip("xy", arrays("join"), strict=True)), {"join"}),
    "targets": (lambda: {"x": X * 2, "y": mark.put(Y.copy(), "join")}, {"join"}),
    "weights": (lambda: {"x": X, "y": Y, "sample_weight": mark.put(np.ones(8), "join")}, {"join"}),
    "split": (lambda: {**dict(zip("xy", arrays("join"), strict=True)), "validation_split": 0.5}, {"join"}),
    "validation arrays": (lambda: {"x": X, "y": Y, "validation_data": arrays("join")}, set()),
    "generator": (lambda: {"x": batches(), "steps_per_epoch": 2}, set()),
}


@pytest.mark.parametrize("case", CASES)
def test_of_a_fit(case):
    arguments, expected = CASES[case]
    assert seen_in(new_model(), **arguments()) == expected


def test_each_fit_by_its_own_data():
    model, part = new_model(), mark.put(dataset(), "join")
    assert seen_in(model, part) == {"join"}
    assert seen_in(model, dataset()) == set()
    assert seen_in(model, part) == {"join"}
    other = new_model()
    assert seen_in(model, part, within=lambda: seen_in(other, dataset())) == {"join"}
    assert training_data.remainders(model) == set(), "no fit runs"


def test_a_list_of_callbacks_that_was_made_before():
    looks = Looks()
    model = new_model()
    callbacks = keras.callbacks.CallbackList([looks], add_history=True, model=model)
    for data in (mark.put(dataset(), "join"), dataset()):
        model.fit(data, verbose=0, callbacks=callbacks)
    assert [seen for seen, _ in looks.seen] == [{"join"}] * 4 + [set()] * 4
