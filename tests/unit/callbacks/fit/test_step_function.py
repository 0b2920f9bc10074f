"""Old iterators are destroyed in another thread than the one that takes the steps."""

import gc
import threading
import weakref

import pytest

from tfdist.callbacks.fit.step_function import StepFunction
from tfdist.ops.graph import failure


class Iterator:
    """Weak references to an object of this class are possible."""


@pytest.fixture
def ends(monkeypatch):
    """The threads in which iterators were destroyed, of those that a step function was called with."""
    found, known = [], []

    def note(function, iterator):
        if all(each() is not iterator for each in known):
            known.append(weakref.ref(iterator))
            weakref.finalize(iterator, lambda: found.append(threading.current_thread().name))
        return function(iterator)

    monkeypatch.setattr(failure, "translating", note)
    return found


def test_the_last_iterator_is_let_go_in_a_thread(ends, wait_until):
    steps = StepFunction(lambda iterator: None)
    kept = Iterator()
    for _ in range(2):
        steps(kept)
    assert ends == []
    steps(Iterator())
    steps(kept)
    wait_until(lambda: len(ends) == 1, seconds=10, what="the end of the second iterator")
    steps.release()
    gc.collect()
    assert len(ends) == 1
    del kept
    wait_until(lambda: len(ends) == 2, seconds=10, what="the end of the first iterator")
    assert ends == ["tfdist-release"] * 2


def test_in_a_thread_after_a_step_that_fails(ends, wait_until):
    def fail(iterator):
        circle = [iterator]
        circle.append(circle)
        raise KeyError("x")

    with pytest.raises(KeyError):
        StepFunction(fail)(Iterator())
    gc.collect()
    wait_until(lambda: len(ends) == 1, seconds=10, what="the end of the iterator")
    assert ends == ["tfdist-release"]


BETWEEN_EPOCHS = """
import gc
import threading
import time
import weakref

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tfdist.ops.graph import failure

ends, known, translating = [], [], failure.translating

def note(function, iterator):
    if all(each() is not iterator for each in known):
        known.append(weakref.ref(iterator))
        weakref.finalize(iterator, lambda: ends.append(threading.current_thread().name))
    return translating(function, iterator)

failure.translating = note
tfdist.init()
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
dataset = tf.data.Dataset.from_tensor_slices((np.ones((8, 2)), np.ones((8, 1)))).batch(4)
callbacks = [tfdist.callbacks.DataParallel()]
model.fit(dataset, epochs=3, validation_data=dataset, verbose=0, callbacks=callbacks)
model.evaluate(dataset, verbose=0, callbacks=callbacks)

def wait_for(number):
    last = time.monotonic() + 10
    while len(ends) < number:
        assert time.monotonic() < last, ends
        time.sleep(0.01)

wait_for(7)
assert len(ends) == 7
assert ends.count("tfdist-release") >= 6

class Fails(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch:
            raise KeyError(batch)

del ends[:]
for fails in ([Fails()], [Fails()], []):
    try:
        model.fit(dataset, verbose=0, callbacks=callbacks + fails)
    except KeyError:
        gc.collect()  # of circles of references that Keras has left
wait_for(2)
assert ends[:2] == ["tfdist-release"] * 2, ends
"""


def test_between_the_epochs_of_a_fit_and_after_one_that_fails(run_script):
    """The last iterator is that of Keras' `fit`, which still has it when the callbacks end: who is last destroys it."""
    run_script(BETWEEN_EPOCHS)
