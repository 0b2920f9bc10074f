"""A fit with a global batch: as an elastic job, and in one process.

global_batch.py VICTIMS MODEL [LIMIT]  a fit by tfdistrun in a folder of its own; VICTIMS as in training.py, MODEL of
                                       MODELS, LIMIT the most samples that a rank takes at once
"""

import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
import training

import tfdist

GLOBAL, EPOCHS = 30, 3  # 16 steps an epoch; 3 ranks share a batch evenly, 4 do not
MODELS = {
    "momentum": lambda: (keras.optimizers.SGD(training.RATE, momentum=0.9), keras.layers.Activation("tanh")),
    "adam": lambda: (keras.optimizers.Adam(training.RATE), keras.layers.Activation("tanh")),
    "normalization": lambda: (
        keras.optimizers.SGD(training.RATE, momentum=0.9),
        keras.layers.BatchNormalization(momentum=0.9, synchronized=True),
    ),
}


class Model(keras.Sequential):
    """Counts how often its step is traced, and among how many ranks, and how many samples it takes at once."""

    traces, most = 0, 0
    sizes = ()

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        if training:
            self.traces += 1
            self.sizes = (*self.sizes, tfdist.size() if tfdist.is_initialized() else 0)
            tf.numpy_function(self.note, [tf.shape(y_pred)[0]], tf.int32)
        return super().compute_loss(x, y, y_pred, sample_weight, training=training)

    def note(self, samples):
        self.most = max(self.most, int(samples))
        return samples


def make_model(kind):
    keras.utils.set_random_seed(1)
    optimizer, middle = MODELS[kind]()
    # Without a bias before batch normalization, whose gradient would be rounding alone.
    dense = keras.layers.Dense(16, use_bias=kind != "normalization")
    layers = [keras.Input((8,)), dense, middle, keras.layers.Activation("tanh"), keras.layers.Dense(1)]
    model = Model(layers)
    model.compile(optimizer, "mse", metrics=["mae"])
    return model


def one_process(kind):
    """The history, and the weights and the optimizer's variables, of ordinary training."""
    model = make_model(kind)
    whole = training.make_rows().batch(GLOBAL)
    data = training.make_data().batch(GLOBAL, drop_remainder=True)
    if kind == "normalization":
        model.layers[1].synchronized = False
    history = model.fit(data, epochs=EPOCHS, validation_data=whole, verbose=0).history
    return history, training.variables_of(model)


def scaled(x, y):
    """A step of tf.data before the share is taken, and one after it undoes it."""
    return 2 * x, y


def halved(x, y):
    return x / 2, y


def train(victims, kind, limit=None):
    tfdist.init()
    number, joins = tfdist.rank(), tfdist.size() == 1
    killers = {int(rank): training.Killer(int(step), how) for rank, step, how in (one.split(":") for one in victims)}
    if number in killers:
        killers[number].die("again")
    model = make_model(kind)
    data = tfdist.shard(training.make_data().map(scaled), global_batch=GLOBAL, max_local_batch=limit)
    data = data.map(halved).prefetch(2)
    whole = tfdist.shard(training.make_rows(), global_batch=GLOBAL)
    ended = []
    watch = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: ended.append(int(model.optimizer.iterations))
    )
    callbacks = [tfdist.callbacks.DataParallel(elastic=True), training.Report(), watch]
    callbacks += [killers[number]] if number in killers else []
    history = model.fit(data, epochs=EPOCHS, callbacks=callbacks, verbose=0, validation_data=whole).history
    assert model.traces <= 3, "traced again"  # two where variables are made, and one that makes the optimizer's
    assert not joins or set(model.sizes) == {1}, "the others waited for the trace of a new rank"
    assert model.most == limit or limit is None
    assert np.diff(ended).tolist() == [1] * (len(ended) - 1), "callbacks miss the end of a step"
    np.savez(Path(f"rank-{number}.npz"), *training.variables_of(model))
    np.savez(Path(f"history-{number}.npz"), **history)


if __name__ == "__main__":
    train([victim for victim in sys.argv[1].split(",") if victim], sys.argv[2], *map(int, sys.argv[3:]))
