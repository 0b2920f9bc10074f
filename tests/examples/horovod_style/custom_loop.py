"""Handwritten digits in a loop of one's own, with a distributed tape; rank 0 saves."""

import hashlib
import json

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

import horovod.tensorflow as hvd

BATCH, STEPS = 32, 600

hvd.init()
keras.utils.set_random_seed(1 + hvd.rank())

images, labels = load_digits(return_X_y=True)
data = tf.data.Dataset.from_tensor_slices(((images / 16).astype("float32"), labels))
data = data.shard(hvd.size(), hvd.rank()).repeat().shuffle(500).batch(BATCH)

model = keras.Sequential(
    [keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)],
)
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = keras.optimizers.Adam(0.001 * hvd.size())


@tf.function
def training_step(batch, targets, first):
    with tf.GradientTape() as tape:
        loss = loss_of(targets, model(batch, training=True))
    # The tape now averages over all ranks.
    tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    # Here, and not earlier, because the first step makes the variables of the optimizer.
    if first:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(optimizer.variables, root_rank=0)
    return loss


# A rank takes its share of the steps: the ranks work on one job together.
for step, (batch, targets) in enumerate(data.take(STEPS // hvd.size())):
    loss = training_step(batch, targets, step == 0)
    if step % 50 == 0 and hvd.local_rank() == 0:
        print(f"step {step}: loss {float(loss):.4f}")

mean_loss = hvd.allreduce(loss, name="last loss")
if hvd.rank() == 0:
    model.save("digits.keras")

bits = b"".join(weight.tobytes() for weight in [*model.get_weights(), *(v.numpy() for v in optimizer.variables)])
result = {"weights": hashlib.sha256(bits).hexdigest(), "loss": float(loss), "mean_loss": float(mean_loss)}
print("result", json.dumps(result), flush=True)
