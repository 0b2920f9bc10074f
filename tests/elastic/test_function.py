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
