"""`tfdist.run` of an elastic job: the function goes on when a rank is lost, and the others return."""

import os
import signal
import sys

import cloudpickle
import numpy as np
import pytest

import tfdist
from tfdist.errors import ConfigError

cloudpickle.register_pickle_by_value(sys.modules[__name__])

SAMPLES, BATCH, EPOCHS = 120, 12, 2


def train(lost):
    """Rank `lost` dies in the middle of the second epoch. Returns the number of ranks, the samples and the weights."""
    import keras

    import tfdist

    tfdist.init()
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05), "mse")

    class Dies(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if tfdist.rank() == lost and int(self.model.optimizer.iterations) == 15:
                os.kill(os.getpid(), signal.SIGKILL)

    x = np.random.default_rng(1).normal(size=(SAMPLES, 3)).astype("float32")
    data = tfdist.shard((x, x.sum(1)), global_batch=BATCH)
    callbacks = [tfdist.callbacks.DataParallel(elastic=True), Dies()]
    model.fit(data, epochs=EPOCHS, verbose=0, shuffle=False, callbacks=callbacks)
    return tfdist.size(), int(model.optimizer.iterations), model.get_weights()


def differentiate(lost):
    """Rank `lost` dies after its first step. Returns the ranks, this one and the gradients of each step.

    The gradients are of one traced function, and those of a mean do not depend on the number of ranks.
    """
    import tensorflow as tf

    import tfdist

    tfdist.init()
    table, weight, row = tf.Variable(tf.ones([4, 1])), tf.Variable([1.0]), tf.Variable([[1.0]])
    rows = tf.Variable(tf.ones([7, 1]))  # which no number of ranks deals out evenly

    @tf.function
    def gradients():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [0])) + tf.reduce_sum(weight)
        tape = tfdist.DistributedGradientTape(tape, gradient_predivide_factor=2.0)
        found = tape.gradient(loss, [table, weight])
        with tf.GradientTape() as tape:
            gathered = tfdist.allgather(row)
            place = tf.range(1.0, tf.cast(tf.shape(gathered)[0], tf.float32) + 1)[:, None]
            loss = tf.reduce_sum(gathered * place)
        found.append(tape.gradient(loss, row))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tfdist.reducescatter(rows, op=tfdist.Average))
        return [tf.convert_to_tensor(each) for each in (*found, tape.gradient(loss, rows))]

    state, told = tfdist.elastic.ObjectState(step=0), []

    @tfdist.elastic.run
    def train(state):
        while state.step < 3:
            told.append((tfdist.size(), tfdist.rank(), [each.numpy().ravel().tolist() for each in gradients()]))
            if tfdist.rank() == lost and tfdist.size() == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            state.step += 1
            state.commit()

    train(state)
    return told


def test_gradients_of_a_traced_function():
    """In the order of the ranks, that of rank 1 is lost and rank 2 becomes rank 1."""
    for told in tfdist.run(differentiate, (1,), num_proc=3, min_num_proc=2):
        assert {size for size, _, _ in told} == {3, 2}
        for size, rank, gradients in told:
            table, weight, row, rows = gradients
            assert (table, weight, row) == ([1.0, 0.0, 0.0, 0.0], [1.0], [size * (rank + 1.0)])
            np.testing.assert_allclose(rows, [1 / size] * 7, rtol=1e-6)


@pytest.mark.slice("elastic")
def test_others_return():
    found = tfdist.run(train, (1,), num_proc=3, min_num_proc=2)
    assert [(size, steps) for size, steps, _ in found] == [(2, EPOCHS * SAMPLES // BATCH)] * 2
    ((_, _, alone),) = tfdist.run(train, (None,), num_proc=1, min_num_proc=1)
    for weights in (found[0][2], found[1][2]):
        for one, other in zip(weights, alone, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)


def test_without_the_fewest():
    with pytest.raises(ConfigError, match="max_num_proc is for elastic jobs; add min_num_proc"):
        tfdist.run(train, (1,), num_proc=1, max_num_proc=2)
