"""Times the steps of a Keras training under Horovod, for compare.py; runs in an environment of its own.

Usage: train.py MODEL PIXELS BATCH COMPRESSION STEPS, as in: train.py ResNet50 96 8 none 30
Prints one line of JSON on rank 0. Network, optimizer, data and timing are those of `tfdist bench train`.
"""

import json
import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import horovod
import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf

WARM_UP_STEPS, CLASSES = 4, 1000
keras = tf.keras


class StepTimer(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seconds = []

    def on_train_batch_begin(self, batch, logs=None):
        self.start = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self.seconds.append(time.perf_counter() - self.start)


def build(name, pixels):
    shape = (pixels, pixels, 3)
    if name != "digits":
        return getattr(keras.applications, name)(weights=None, input_shape=shape, classes=CLASSES)
    return keras.Sequential(
        [
            keras.layers.Input(shape),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(CLASSES, activation="softmax"),
        ]
    )


def main():
    name, pixels, batch, compression, steps = sys.argv[1], *map(int, sys.argv[2:4]), sys.argv[4], int(sys.argv[5])
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    hvd.init()
    model = build(name, pixels)
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(1e-4, momentum=0.9), compression=getattr(hvd.Compression, compression)
    )
    model.compile(optimizer=optimizer, loss="sparse_categorical_crossentropy")
    numbers = np.random.default_rng(hvd.rank())
    images = numbers.random((batch, pixels, pixels, 3), np.float32)
    dataset = tf.data.Dataset.from_tensors((images, numbers.integers(0, CLASSES, batch))).repeat()
    timer = StepTimer()
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), timer]
    model.fit(dataset, steps_per_epoch=WARM_UP_STEPS + steps, verbose=0, callbacks=callbacks)
    seconds = hvd.allgather(tf.constant([timer.seconds[WARM_UP_STEPS:]])).numpy().mean(axis=0)
    if hvd.rank() == 0:
        record = {
            "model": name,
            "image_size": pixels,
            "batch_size": batch,
            "compression": compression,
            "ranks": hvd.size(),
            "median_ms": float(np.median(seconds)) * 1e3,
            "min_ms": float(seconds.min()) * 1e3,
            "horovod": horovod.__version__,
            "tensorflow": tf.__version__,
        }
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
