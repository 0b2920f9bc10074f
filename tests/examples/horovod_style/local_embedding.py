"""An embedding table too large for one rank: row i lives on rank i mod size, and rows are fetched by alltoall."""

import json

import keras
import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd

ROWS, WIDTH, SAMPLES, STEPS = 30, 4, 60, 200

hvd.init()

# The whole job has the same samples whatever the number of ranks; each rank takes its share.
generator = np.random.default_rng(5)
ids = generator.integers(0, ROWS, SAMPLES)
targets = np.sin(ids).astype("float32")
table = generator.normal(size=(ROWS, WIDTH)).astype("float32")
share = slice(hvd.rank() * SAMPLES // hvd.size(), (hvd.rank() + 1) * SAMPLES // hvd.size())
ids, targets = tf.constant(ids[share]), tf.constant(targets[share])

part = tf.Variable(table[hvd.rank() :: hvd.size()])
# The head is shared: another one on every rank until the broadcast.
head = keras.layers.Dense(1, kernel_initializer=keras.initializers.RandomNormal(1.0, seed=hvd.rank()))
head.build((None, WIDTH))
hvd.broadcast_variables(head.variables, root_rank=0)
optimizer = keras.optimizers.SGD(0.5)


def fetch(wanted):
    """The rows of these ids, from the ranks that have them."""
    owner = wanted % hvd.size()
    order = tf.argsort(owner, stable=True)
    ask = tf.math.bincount(tf.cast(owner, tf.int32), minlength=hvd.size())
    # What every rank wants of this one, and how much of it.
    asked, answer = hvd.alltoall(tf.gather(wanted, order), splits=ask, name="ids")
    rows = tf.gather(part, asked // hvd.size())
    # Back the same way; then into the order in which they were wanted.
    rows, _ = hvd.alltoall(rows, splits=answer, name="rows")
    return tf.gather(rows, tf.argsort(order)), ask


@tf.function
def step():
    with tf.GradientTape() as tape:
        rows, asked = fetch(ids)
        loss = tf.reduce_mean((head(rows)[:, 0] - targets) ** 2)
    # The part is this rank's own: its gradient has come from all ranks already, through alltoall.
    tape = hvd.DistributedGradientTape(tape)
    tape.register_local_source(part)
    variables = [part, *head.trainable_variables]
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    return loss, asked


for _ in range(STEPS):
    loss, asked = step()

loss = hvd.allreduce(loss, name="loss")
parts = hvd.allgather_object(part.numpy(), name="parts")
for rank, rows in enumerate(parts):
    table[rank :: hvd.size()] = rows
result = {
    "loss": float(loss),
    "asked": asked.numpy().tolist(),
    "part": list(part.shape),
    "table": table.tolist(),
    "head": head.kernel.numpy().ravel().tolist(),
}
print("result", json.dumps(result), flush=True)
