"""A fit under elastic Horovod of which one host loses a rank, for elastic_recovery.py; in an environment of its own.

Usage: horovodrun ... python elastic.py STEP HOST: at the end of that step the first rank on that host is killed. Model,
data, commits and the file of steps are those of elastic_recovery.py; it ends five steps after it has gone on.
"""

import os
import signal
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf

keras = tf.keras
STEP, HOST = int(sys.argv[1]), sys.argv[2]


class Watch(keras.callbacks.Callback):
    since, size = 0, 0

    def on_train_batch_end(self, batch, logs=None):
        steps = int(self.model.optimizer.iterations)
        if hvd.size() != self.size:
            self.since, self.size = steps, hvd.size()
        with open("steps", "a") as file:
            file.write(f"{steps} {time.time()!r} {self.size}\n")
        if steps == STEP and os.environ["HOROVOD_HOSTNAME"] == HOST and hvd.local_rank() == 0:
            with open(f"fault-0-{hvd.rank()}", "w") as file:
                file.write(f"{time.time()!r} {steps}")
            os.kill(os.getpid(), signal.SIGKILL)
        self.model.stop_training = steps > STEP and self.size < 4 and steps >= self.since + 5


def main():
    hvd.init()
    samples = np.random.default_rng(0).normal(size=(4800, 8)).astype("float32")
    rows = tf.data.Dataset.from_tensor_slices((samples, samples.sum(1, keepdims=True))).shuffle(4800, seed=1)
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam()), "mse")
    state = hvd.elastic.KerasState(model, batch=0, epoch=0)

    @hvd.elastic.run
    def train(state):
        callbacks = [
            hvd.elastic.CommitStateCallback(state),
            hvd.elastic.UpdateBatchStateCallback(state),
            hvd.elastic.UpdateEpochStateCallback(state),
            Watch(),
        ]
        data = rows.shard(hvd.size(), hvd.rank()).batch(8).repeat()
        model.fit(data, steps_per_epoch=4800 // 8 // hvd.size(), epochs=1000, verbose=0, callbacks=callbacks)

    train(state)


if __name__ == "__main__":
    main()
