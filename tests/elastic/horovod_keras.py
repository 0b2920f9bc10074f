"""As a user of Horovod writes an elastic training with Keras.

horovod_keras.py RANK EPOCH BATCH   that rank is killed there
"""

import hashlib
import os
import signal
import sys
from pathlib import Path

import horovod.tensorflow.keras as hvd
import keras
import numpy as np
import tensorflow as tf
from horovod.common.exceptions import HorovodInternalError

EPOCHS, STEPS, RATE = 3, 24, 0.01

hvd.init()
random = np.random.default_rng(hvd.rank())
samples = random.normal(size=(64, 4)).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((samples, samples.sum(1, keepdims=True))).repeat().shuffle(64).batch(4)

keras.utils.set_random_seed(1 + hvd.rank())
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(RATE * hvd.size(), momentum=0.9))
model.compile(optimizer, loss="mse", metrics=["mae"])
model.fit(dataset, steps_per_epoch=1, epochs=1, verbose=0)  # makes the optimizer's variables

state = hvd.elastic.KerasState(model, batch=0, epoch=0)


def on_state_reset():
    state.model.optimizer.learning_rate.assign(RATE * hvd.size())
    state.model.fit(dataset, steps_per_epoch=1, epochs=1, verbose=0)


state.register_reset_callbacks([on_state_reset])


class Victim(keras.callbacks.Callback):
    """Kills one rank at one step, once."""

    def on_train_batch_end(self, batch, logs=None):
        done = Path("killed")
        if [hvd.rank(), state.epoch, state.batch] == [int(word) for word in sys.argv[1:]] and not done.exists():
            done.touch()
            os.kill(os.getpid(), signal.SIGKILL)


callbacks = [
    hvd.callbacks.MetricAverageCallback(),
    hvd.elastic.UpdateEpochStateCallback(state),
    hvd.elastic.UpdateBatchStateCallback(state),
    hvd.elastic.CommitStateCallback(state),
    Victim(),
]


@hvd.elastic.run
def train(state):
    steps, epochs = STEPS // hvd.size(), EPOCHS - state.epoch
    try:
        state.model.fit(dataset, steps_per_epoch=steps, epochs=epochs, callbacks=callbacks, verbose=0)
    except HorovodInternalError:
        print("a rank was lost", flush=True)
        raise


train(state)
rate, steps = float(state.optimizer.learning_rate), int(state.optimizer.iterations)
digest = hashlib.sha256(b"".join(np.asarray(variable).tobytes() for variable in state.variables)).hexdigest()
counts = f"epoch={state.epoch} batch={state.batch} size={hvd.size()} rate={rate:.3f} steps={steps}"
print(f"end {counts} {digest}", flush=True)
