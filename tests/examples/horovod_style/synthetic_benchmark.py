"""Images per second of a small network on made-up images, per rank and in total."""

import argparse
import json
import timeit

import keras
import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--num-warmup-batches", type=int, default=2)
parser.add_argument("--num-batches-per-iter", type=int, default=3)
parser.add_argument("--num-iters", type=int, default=4)
parser.add_argument("--fp16-allreduce", action="store_true")
args = parser.parse_args()

hvd.init()

model = keras.Sequential([keras.Input((32, 32, 3))])
for filters in (16, 32, 64):
    model.add(keras.layers.Conv2D(filters, 3, strides=2, use_bias=False))
    model.add(keras.layers.BatchNormalization())
    model.add(keras.layers.ReLU())
model.add(keras.layers.GlobalAveragePooling2D())
model.add(keras.layers.Dense(10, activation="softmax"))
optimizer = keras.optimizers.SGD(0.01)
compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
images = tf.random.uniform([args.batch_size, 32, 32, 3])
targets = tf.random.uniform([args.batch_size], 0, 10, tf.int64)
steps = 0


@tf.function
def step_of_all(first):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(targets, model(images, training=True)))
    tape = hvd.DistributedGradientTape(tape, compression=compression)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    if first:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(optimizer.variables, root_rank=0)


def step():
    global steps
    step_of_all(steps == 0)
    steps += 1


def log(text):
    if hvd.rank() == 0:
        print(text, flush=True)


log(f"{model.count_params()} parameters, {args.batch_size} images a step, {hvd.size()} ranks")
timeit.timeit(step, number=args.num_warmup_batches)
rates = []
for index in range(args.num_iters):
    seconds = timeit.timeit(step, number=args.num_batches_per_iter)
    rates.append(args.batch_size * args.num_batches_per_iter / seconds)
    log(f"iteration {index}: {rates[-1]:.1f} images a second on this rank")

mean, spread = float(np.mean(rates)), 1.96 * float(np.std(rates))
total = hvd.allreduce(tf.constant(mean, tf.float64), op=hvd.Sum, name="images a second")
log(f"each rank: {mean:.1f} +- {spread:.1f}; all {hvd.size()}: {float(total):.1f}")
trained = sum(float(tf.reduce_sum(tf.cast(weight, tf.float64))) for weight in model.trainable_variables)
result = {"rates": rates, "mean": mean, "total": float(total), "steps": int(optimizer.iterations), "sum": trained}
print("result", json.dumps(result), flush=True)
