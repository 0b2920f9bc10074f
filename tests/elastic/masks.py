"""A fit whose ranks print what they drop, with one seed on all of them.

masks.py VICTIMS  by tfdistrun in a folder of its own; VICTIMS: as for training.py
"""

import hashlib
import sys

import keras
import tensorflow as tf
import training

import tfdist


class Masks(keras.layers.Layer):
    """Dropout whose mask is printed."""

    def __init__(self):
        super().__init__()
        self.dropout = keras.layers.Dropout(0.5)

    def call(self, x, training=False):
        mask = self.dropout(tf.ones((64,)), training=training)
        if training:
            tf.py_function(report, [mask], [])
        return x * mask[:8]


def report(mask):
    print(f"mask {hashlib.sha256(mask.numpy().tobytes()).hexdigest()}", flush=True)


def train(victims):
    tfdist.init()
    keras.utils.set_random_seed(42)
    model = keras.Sequential([keras.Input((8,)), Masks(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    data = tfdist.shard(training.make_data()).batch(training.BATCH)
    callbacks = [tfdist.callbacks.DataParallel(elastic=True)]
    callbacks += [training.Killer(int(step), how) for rank, step, how in victims if int(rank) == tfdist.rank()]
    model.fit(data, epochs=1, callbacks=callbacks, verbose=0)


if __name__ == "__main__":
    train([victim.split(":") for victim in sys.argv[1].split(",")])
