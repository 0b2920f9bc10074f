"""As in the time of sessions: a graph, MonitoredTrainingSession, hooks, a checkpoint of rank 0."""

import json

import numpy as np
import tensorflow.compat.v1 as tf
from sklearn.datasets import load_digits

import horovod.tensorflow as hvd

tf.disable_v2_behavior()
hvd.init()
tf.set_random_seed(hvd.rank())

STEPS = 200
BATCH = 32


def batches_of_rank():
    """Batches of this rank's share of the digits, without end."""
    images, labels = load_digits(return_X_y=True)
    images, labels = images[hvd.rank() :: hvd.size()] / 16, labels[hvd.rank() :: hvd.size()]
    generator = np.random.default_rng(hvd.rank())
    while True:
        chosen = generator.choice(len(images), BATCH, replace=False)
        yield images[chosen], labels[chosen]


images = tf.placeholder(tf.float32, [None, 64], name="images")
labels = tf.placeholder(tf.int64, [None], name="labels")
hidden = tf.get_variable("hidden", [64, 32])
last = tf.get_variable("last", [32, 10])
logits = tf.matmul(tf.nn.relu(tf.matmul(images, hidden)), last)
loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), labels), tf.float32))

optimizer = tf.train.AdagradOptimizer(0.05 * hvd.size())
optimizer = hvd.DistributedOptimizer(optimizer)
global_step = tf.train.get_or_create_global_step()
train_step = optimizer.minimize(loss, global_step=global_step)
with tf.control_dependencies([train_step]):
    trained = last.read_value()
mean_accuracy = hvd.allreduce(accuracy, name="accuracy")

hooks = [hvd.BroadcastGlobalVariablesHook(0), tf.train.StopAtStepHook(last_step=STEPS)]
config = tf.ConfigProto(allow_soft_placement=True)
checkpoint_dir = "checkpoints" if hvd.rank() == 0 else None

batches = batches_of_rank()
reached = []
with tf.train.MonitoredTrainingSession(checkpoint_dir=checkpoint_dir, config=config, hooks=hooks) as session:
    while not session.should_stop():
        x, y = next(batches)
        weights, value = session.run([trained, mean_accuracy], {images: x, labels: y})
        reached.append(float(value))

print(
    "result",
    json.dumps({"weights": np.sum(weights, axis=0).tolist(), "steps": len(reached), "accuracy": reached[-20:]}),
)
