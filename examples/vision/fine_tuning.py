r"""Fine-tunes a network on a new task: first its head on a frozen backbone, then all of it, at a lower rate.

    python examples/vision/fine_tuning.py                        # one process
    tfdistrun -np 2 python examples/vision/fine_tuning.py        # two
    CODE=$PWD/examples COMMAND="python vision/fine_tuning.py" \
        docker compose -f compose/train.yaml up --exit-code-from launcher    # two containers

The backbone learns the digits 0 to 4; then the model learns 5 to 9 from 200 images. Batch normalization is
synchronized: its statistics are those of the images of all ranks. The script ends with the accuracy on other images of
5 to 9: higher after fine-tuning than with the frozen backbone, and the same on any number of ranks.
The lines marked with <-- are what training on several processes takes.
"""

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

import tfdist


def load_data():
    """The old task, and what there is of the new one: to train on, and to validate."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).reshape(-1, 8, 8, 1).astype("float32")
    old, new = labels < 5, labels >= 5
    x, y = images[new], labels[new] - 5
    return (images[old], labels[old]), (x[:200], y[:200]), (x[200:], y[200:])


def build_backbone():
    layers = [keras.Input((8, 8, 1))]
    for filters in (16, 32):
        layers += [keras.layers.Conv2D(filters, 3, strides=2, padding="same", use_bias=False)]
        layers += [keras.layers.BatchNormalization(momentum=0.9, synchronized=True), keras.layers.ReLU()]
    layers += [keras.layers.Flatten()]
    return keras.Sequential(layers, name="backbone")


def with_head(backbone):
    return keras.Sequential([backbone, keras.layers.Dense(5, activation="softmax")])


def train(model, data, rate, epochs):
    """Every fit has a compile of its own, which Keras needs after a change of `trainable`."""
    model.compile(keras.optimizers.SGD(rate, momentum=0.9), "sparse_categorical_crossentropy", metrics=["accuracy"])
    samples = tf.data.Dataset.from_tensor_slices(data).shuffle(1000, seed=1)
    samples = tfdist.shard(samples, global_batch=40)  # <-- 1: this process's part
    callbacks = [tfdist.callbacks.DataParallel()]  # <-- 2: train together
    model.fit(samples, epochs=epochs, verbose=2, callbacks=callbacks)


def accuracy_of(model, data):
    return model.evaluate(*data, batch_size=200, verbose=0, return_dict=True)["accuracy"]


def main():
    tfdist.init()
    keras.utils.set_random_seed(1)
    old_task, new_task, validation = load_data()
    backbone = build_backbone()
    train(with_head(backbone), old_task, rate=0.02, epochs=4)

    model = with_head(backbone)  # with a new head
    backbone.trainable = False  # its batch normalization uses the statistics of the old task from now on
    train(model, new_task, rate=0.02, epochs=4)
    frozen = accuracy_of(model, validation)

    backbone.trainable = True
    train(model, new_task, rate=0.01, epochs=8)
    tuned = accuracy_of(model, validation)
    if tfdist.rank() == 0:
        print(f"validation accuracy with the frozen backbone: {frozen:.3f}")
        print(f"validation accuracy after fine-tuning: {tuned:.3f}")


if __name__ == "__main__":
    main()
