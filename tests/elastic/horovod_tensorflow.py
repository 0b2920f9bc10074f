"""As a user of Horovod writes an elastic loop with TensorFlow.

horovod_tensorflow.py model|variables RANK STEP|hosts   that rank is killed at that step, or a host gets a third slot
"""

import hashlib
import os
import signal
import sys
import threading
from pathlib import Path

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf
from horovod.common.exceptions import HostsUpdatedInterrupt

STEPS, RATE = 60, 0.01

hvd.init()
random = np.random.default_rng(hvd.rank())
samples = random.normal(size=(64, 4)).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((samples, samples.sum(1, keepdims=True))).repeat().batch(4)

keras.utils.set_random_seed(1 + hvd.rank())
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])
optimizer = keras.optimizers.Adam(RATE * hvd.size())
optimizer.build(model.trainable_variables)


@tf.function
def training_step(inputs, targets):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(inputs, training=True) - targets))
    tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


def kill_once():
    done = Path("killed")
    if sys.argv[3] == "hosts":
        return
    if [hvd.rank(), state.batch] == [int(word) for word in sys.argv[2:]] and not done.exists():
        done.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def wait_for_others():
    """With another slot on this host; the commit at which they come ends it."""
    if sys.argv[3] == "hosts" and hvd.size() == 2 and state.batch == 20:
        Path("hosts").write_text("localhost:3")
        while True:
            threading.Event().wait(0.05)
            try:
                state.commit()
            except HostsUpdatedInterrupt:
                print("hosts were updated", flush=True)
                raise


@hvd.elastic.run
def train(state, per_commit):
    for inputs, targets in dataset.skip(state.batch).take(STEPS - state.batch):
        training_step(inputs, targets)
        state.batch += 1
        if state.batch % per_commit == 0:
            state.commit()
        kill_once()
        wait_for_others()
    return "trained"


def on_state_reset():
    optimizer.learning_rate.assign(RATE * hvd.size())


if sys.argv[1] == "model":
    state = hvd.elastic.TensorFlowKerasState(model, optimizer, batch=0)
else:
    state = hvd.elastic.TensorFlowState([*model.variables, *optimizer.variables], batch=0)
state.register_reset_callbacks([on_state_reset])
result = train(state, per_commit=4)
rate, steps = float(optimizer.learning_rate), int(optimizer.iterations)
digest = hashlib.sha256(b"".join(np.asarray(variable).tobytes() for variable in state.variables)).hexdigest()
print(f"end {result} batch={state.batch} size={hvd.size()} rate={rate:.3f} steps={steps} {digest}", flush=True)
