r"""Trains in a loop of its own, without `model.fit`: the tape averages the gradients of all ranks.

    python examples/custom_training/loop.py                      # one process
    tfdistrun -np 2 python examples/custom_training/loop.py      # two
    CODE=$PWD/examples COMMAND="python custom_training/loop.py" \
        docker compose -f compose/train.yaml up --exit-code-from launcher    # two containers

The script prints the loss of each epoch, and ends with the accuracy on 360 digits: both the same on any number of ranks
that divides a batch of 60.
The lines marked with <-- are what training on several processes takes.
"""

import argparse

import keras
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import tfdist


def load_data(batch_size):
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype("float32")
    x, x_val, y, y_val = train_test_split(images, labels, test_size=360, random_state=0, stratify=labels)
    train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed=1)
    # As many steps on one rank as on many: `batch_size` images are those of all ranks together.
    return tfdist.shard(train, global_batch=batch_size), (x_val, y_val)  # <-- 1: this process's part


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=60, help="images per step of all ranks together")
    options = parser.parse_args()

    tfdist.init()
    if options.batch_size % tfdist.size():
        parser.error(f"--batch-size {options.batch_size} must be a multiple of the {tfdist.size()} ranks")
    keras.utils.set_random_seed(1)
    train, (x_val, y_val) = load_data(options.batch_size)
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)],
    )
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)
    tfdist.broadcast_variables([*model.weights, *optimizer.variables], root_rank=0)  # <-- 2: all start alike

    @tf.function
    def step(images, labels):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        tape = tfdist.DistributedGradientTape(tape)  # <-- 3: gradients are averaged over all ranks
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    for epoch in range(options.epochs):
        mean = keras.metrics.Mean()
        for images, labels in train:
            mean.update_state(step(images, labels))
        loss = tfdist.allreduce(mean.result(), op=tfdist.Average)  # <-- 4: on all ranks, also if one prints it
        if tfdist.rank() == 0:
            print(f"epoch {epoch + 1}: loss {float(loss):.4f}")

    if tfdist.rank() == 0:  # the weights are the same on all ranks
        accuracy = keras.metrics.SparseCategoricalAccuracy()
        accuracy.update_state(y_val, model(x_val))
        print(f"validation accuracy: {float(accuracy.result()):.3f}")


if __name__ == "__main__":
    main()
