r"""Trains a small convolutional network on scikit-learn's handwritten digits, on one process or on many.

    python examples/digits.py                       # one process
    tfdistrun -np 2 python examples/digits.py       # two
    CODE=$PWD/examples COMMAND="python digits.py --output /checkpoints" \
        docker compose -f compose/train.yaml up --exit-code-from launcher    # two containers
    tfdistrun -np 2 --elastic python examples/digits.py --elastic    # one of them may be lost

It ends with the accuracy on 360 images that it has not trained on: 0.97 or more, on any number of ranks.
The two lines marked with <-- are what training on several processes takes.
"""

import argparse
import time
from pathlib import Path

import keras
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import tfdist


def load_data(batch_size):
    """1,797 images of 8x8 pixels: 1,437 to train on, 360 to validate."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).reshape(-1, 8, 8, 1).astype("float32")
    x, x_val, y, y_val = train_test_split(images, labels, test_size=360, random_state=0, stratify=labels)
    # The seed gives every process the same order, so that their parts do not overlap.
    train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed=1).batch(batch_size)
    # Every process validates on all 360 images, so the accuracy is that of the whole set.
    validation = tf.data.Dataset.from_tensor_slices((x_val, y_val)).batch(batch_size)
    return train, validation


def build_model():
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.4),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(keras.optimizers.Adam(1e-3), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32, help="images per step on each process")
    parser.add_argument("--output", type=Path, default=Path("digits-output"), metavar="DIR")
    parser.add_argument("--elastic", action="store_true", help="go on when a process is lost")
    options = parser.parse_args()

    train, validation = load_data(options.batch_size)
    images = options.epochs * len(train) * options.batch_size
    train = tfdist.shard(train)  # <-- 1: this process's part
    model = build_model()
    path = options.output / "digits.keras"
    callbacks = [
        tfdist.callbacks.DataParallel(elastic=options.elastic),  # <-- 2: train together
        tfdist.callbacks.BestModelCheckpoint(path, monitor="val_accuracy"),  # written by rank 0
    ]
    start = time.perf_counter()
    history = model.fit(train, validation_data=validation, epochs=options.epochs, callbacks=callbacks, verbose=2)
    seconds = time.perf_counter() - start

    if tfdist.rank() == 0:
        print(f"validation accuracy: {max(history.history['val_accuracy']):.4f}")
        if not options.elastic:  # which may have begun in other processes
            print(f"images per second: {images / seconds:.0f} (start-up and validation included)")
        print(f"saved model: {path.resolve()}")


if __name__ == "__main__":
    main()
